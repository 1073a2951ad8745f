import torch
from torch.func import functional_call, grad, vmap


class PrivateEngine:
    def __init__(self, model, loss_fn, sigma, gen):
        self.model, self.loss_fn, self.sigma, self.gen = model, loss_fn, sigma, gen
        self.sample_grad = vmap(grad(self.one), in_dims=(None, 0, 0))

    def one(self, params, x, y):
        return self.loss_fn(functional_call(self.model, params, (x.unsqueeze(0),)), y.unsqueeze(0))

    def fill(self, x, y, clip):
        grads = self.sample_grad({k: v.detach() for k, v in self.model.named_parameters()}, x, y)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = clip / torch.maximum(norms + 1e-6, torch.zeros(()))
        for name, p in self.model.named_parameters():
            total = torch.einsum("b...,b->...", grads[name], factor)
            p.grad = (total + self.sigma * clip * torch.randn(p.shape, generator=self.gen)) / x.size(0)
