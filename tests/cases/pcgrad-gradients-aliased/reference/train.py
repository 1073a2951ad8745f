import torch
import torch.nn as nn
import torch.nn.functional as F

from surgery import flat_grads, project


def main():
    torch.manual_seed(200)
    trunk = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    heads = nn.ModuleList([nn.Linear(16, 1), nn.Linear(16, 4)])
    shared = list(trunk.parameters())
    opt = torch.optim.Adam([*shared, *heads.parameters()], lr=1e-2)
    x = torch.randn(40, 8)
    value, kind = x[:, 0] * 2, torch.randint(0, 4, (40,))
    for step in range(4):
        rows = slice(step * 10, step * 10 + 10)
        h = trunk(x[rows])
        losses = [F.mse_loss(heads[0](h).squeeze(1), value[rows]), F.cross_entropy(heads[1](h), kind[rows])]
        opt.zero_grad(set_to_none=False)
        losses[0].backward(retain_graph=True)
        first = flat_grads(shared)
        for p in shared:
            p.grad.zero_()
        losses[1].backward()
        second = flat_grads(shared)
        for p, a, b in zip(shared, project(first, second), project(second, first)):
            p.grad.copy_(a + b)
        opt.step()
        print(step, *(f"{loss.item():.9g}" for loss in losses))


main()
