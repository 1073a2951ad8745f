import torch


class FusedInBackward:
    """Updates each parameter from a hook, as soon as the last microbatch has filled its gradient."""

    def __init__(self, params, lr, momentum, dampening, parts):
        self.lr, self.momentum, self.dampening, self.parts = lr, momentum, dampening, parts
        self.buffers, self.seen = {}, {}
        self.params = list(params)
        for p in self.params:
            p.register_post_accumulate_grad_hook(self.hook)

    @torch.no_grad()
    def hook(self, p):
        self.seen[p] = self.seen.get(p, 0) + 1
        if self.seen[p] % self.parts:
            return
        if p not in self.buffers:
            self.buffers[p] = p.grad.clone()
        else:
            self.buffers[p].mul_(self.momentum).add_(p.grad, alpha=1 - self.dampening)
        p.add_(self.buffers[p], alpha=-self.lr)
        p.grad = None
