import torch
import torch.nn as nn
import torch.nn.functional as F

import surgery


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(16, 1), nn.Linear(16, 4)])

    def losses(self, x, value, kind):
        h = self.trunk(x)
        return F.mse_loss(self.heads[0](h).squeeze(1), value), F.cross_entropy(self.heads[1](h), kind)


def main():
    torch.manual_seed(200)
    model = MultiTask()
    shared = list(model.trunk.parameters())
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    x = torch.randn(40, 8)
    value, kind = x[:, 0] * 2, torch.randint(0, 4, (40,))
    for step in range(4):
        rows = slice(step * 10, step * 10 + 10)
        regression, classes = model.losses(x[rows], value[rows], kind[rows])
        opt.zero_grad(set_to_none=False)
        regression.backward(retain_graph=True)
        first = surgery.snapshot(shared)
        for p in shared:
            p.grad.zero_()
        classes.backward()
        second = surgery.snapshot(shared)
        surgery.combine(shared, first, second)
        opt.step()
        print(step, f"{regression.item():.9g}", f"{classes.item():.9g}")


main()
