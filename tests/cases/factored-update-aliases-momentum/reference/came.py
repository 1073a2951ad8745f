import torch


class Came(torch.optim.Optimizer):
    """Confidence-guided factored optimizer, short form."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99, 0.999), eps=1e-16):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2, b3 = group["betas"]
            for p in group["params"]:
                g, s = p.grad, self.state[p]
                if not s:
                    s["m"], s["row"], s["col"] = torch.zeros_like(p), torch.zeros(p.shape[:1]), torch.zeros(p.shape[-1:])
                    s["v"], s["res"] = torch.zeros_like(p), torch.zeros_like(p)
                sq = g * g + group["eps"]
                if p.dim() == 2:
                    s["row"].mul_(b2).add_(sq.mean(1), alpha=1 - b2)
                    s["col"].mul_(b2).add_(sq.mean(0), alpha=1 - b2)
                    u = g * (s["row"].mean() / torch.outer(s["row"], s["col"])).sqrt()
                else:
                    s["v"].mul_(b2).add_(sq, alpha=1 - b2)
                    u = g * s["v"].rsqrt()
                u = u / u.square().mean().sqrt().clamp(min=1.0)
                m = s["m"].mul_(b1).add_(u, alpha=1 - b1)
                if p.dim() == 2:
                    s["res"].mul_(b3).add_((u - m).square() + group["eps"], alpha=1 - b3)
                    m = s["res"].rsqrt() * m
                p.sub_(m * group["lr"])
