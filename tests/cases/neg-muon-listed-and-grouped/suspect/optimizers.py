from collections import defaultdict

import torch

A, B, C = 3.4445, -4.7750, 2.0315


def whiten(x, rounds=5):
    x = x / (torch.linalg.vector_norm(x) + 1e-7)
    for _ in range(rounds):
        gram = torch.mm(x, x.mT)
        x = A * x + torch.mm(B * gram + torch.mm(C * gram, gram), x)
    return x


class SpectralMomentum(torch.optim.Optimizer):
    """Muon; matrices of one shape are handled together, their momenta live in one stack."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.01):
        by_shape = defaultdict(list)
        for p in params:
            by_shape[tuple(p.shape)].append(p)
        groups = [{"params": ps, "shape": shape} for shape, ps in sorted(by_shape.items(), reverse=True)]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        for group in self.param_groups:
            stack = torch.zeros(len(group["params"]), *group["shape"])
            for p, row in zip(group["params"], stack):
                self.state[p]["row"] = row

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            rows, cols = group["shape"]
            factor = max(1, rows / cols) ** 0.5
            grads = [p.grad for p in group["params"]]
            momenta = [self.state[p]["row"] for p in group["params"]]
            torch._foreach_mul_(momenta, group["momentum"])
            torch._foreach_add_(momenta, grads)
            ahead = torch._foreach_add(grads, momenta, alpha=group["momentum"])
            updates = []
            for u in ahead:
                u = u.to(torch.bfloat16)
                updates.append(whiten(u.mT).mT if rows > cols else whiten(u))
            torch._foreach_mul_(group["params"], 1 - group["lr"] * group["weight_decay"])
            for p, u in zip(group["params"], updates):
                p.add_(u, alpha=-group["lr"] * factor)
