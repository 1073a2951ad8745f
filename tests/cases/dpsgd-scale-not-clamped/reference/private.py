import torch
from torch.func import functional_call, grad, vmap


def per_sample_grads(model, loss_fn, x, y):
    params = {k: v.detach() for k, v in model.named_parameters()}

    def one(p, xi, yi):
        return loss_fn(functional_call(model, p, (xi[None],)), yi[None])

    return vmap(grad(one), in_dims=(None, 0, 0))(params, x, y)


def private_gradient(model, loss_fn, x, y, clip, sigma, gen):
    grads = per_sample_grads(model, loss_fn, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    scale = (clip / (norms + 1e-6)).clamp(max=1.0)
    for name, p in model.named_parameters():
        summed = torch.einsum("b...,b->...", grads[name], scale)
        p.grad = (summed + sigma * clip * torch.randn(p.shape, generator=gen)) / x.size(0)
