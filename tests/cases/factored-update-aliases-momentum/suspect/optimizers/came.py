import torch
from torch.optim import Optimizer


def ema(buffer, value, beta):
    return buffer.mul_(beta).add_(value, alpha=1 - beta)


class CAME(Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99, 0.999), eps=1e-16):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    def init_state(self, p, state):
        state["exp_avg"] = torch.zeros_like(p)
        if p.dim() == 2:
            state["row"], state["col"] = torch.zeros(p.shape[:1]), torch.zeros(p.shape[-1:])
            state["res"] = torch.zeros_like(p)
        else:
            state["exp_avg_sq"] = torch.zeros_like(p)

    def normalise(self, grad, state, beta, eps):
        sq = grad * grad + eps
        if grad.dim() == 2:
            row, col = ema(state["row"], sq.mean(1), beta), ema(state["col"], sq.mean(0), beta)
            scaled = grad * (row.mean() / torch.outer(row, col)).sqrt()
        else:
            scaled = grad * ema(state["exp_avg_sq"], sq, beta).rsqrt()
        return scaled / scaled.square().mean().sqrt().clamp(min=1.0)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2, beta3 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    self.init_state(p, state)
                scaled = self.normalise(p.grad, state, beta2, group["eps"])
                exp_avg = ema(state["exp_avg"], scaled, beta1)
                if p.dim() == 2:
                    confidence = ema(state["res"], (scaled - exp_avg).square() + group["eps"], beta3)
                    update = confidence.rsqrt().mul_(exp_avg)
                else:
                    update = exp_avg
                update.mul_(group["lr"])
                p.sub_(update)
