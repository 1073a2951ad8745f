import torch


def update(p, grad, m, v, t, lr, b1, b2, eps):
    m.lerp_(grad, 1 - b1)
    v.mul_(b2).addcmul_(grad, grad, value=1 - b2)
    denom = (v.sqrt() + eps) / (1 - b2 ** t) ** 0.5
    p.addcdiv_(m, denom, value=-lr / (1 - b1 ** t))


class Adam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))
        self.t = 0
        for g in self.param_groups:
            for p in g["params"]:
                self.state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self):
        self.t += 1
        for g in self.param_groups:
            for p in g["params"]:
                if p.grad is not None:
                    update(p, p.grad, **self.state[p], t=self.t, lr=g["lr"], b1=g["betas"][0], b2=g["betas"][1], eps=g["eps"])
