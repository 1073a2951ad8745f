import torch
from torch.optim import Optimizer


class ForeachLion(Optimizer):
    """Lion over lists, last parameter first; the momentum starts with the optimizer."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["exp_avg"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            ps = [p for p in reversed(group["params"]) if p.grad is not None]
            gs = [p.grad for p in ps]
            ms = [self.state[p]["exp_avg"] for p in ps]
            b1, b2 = group["betas"]
            torch._foreach_mul_(ps, 1 - group["lr"] * group["weight_decay"])
            us = torch._foreach_mul(ms, b1)
            torch._foreach_add_(us, gs, alpha=1 - b1)
            torch._foreach_sign_(us)
            torch._foreach_mul_(ms, b2)
            torch._foreach_add_(ms, gs, alpha=1 - b2)
            torch._foreach_add_(ps, us, alpha=-group["lr"])
