import torch
import torch.nn as nn
import torch.nn.functional as F


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lam):
        ctx.lam = lam
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g * -ctx.lam, None


class Dann(nn.Module):
    def __init__(self, d=15, width=24):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(d, width), nn.LeakyReLU(0.1), nn.Linear(width, width), nn.LeakyReLU(0.1))
        self.label, self.domain = nn.Linear(width, 4), nn.Linear(width, 2)

    def forward(self, x, lam):
        f = self.features(x)
        return self.label(f), self.domain(Reverse.apply(f, lam))


def main():
    torch.manual_seed(341)
    net = Dann()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    g = torch.Generator().manual_seed(342)
    for step in range(4):
        x = torch.randn(16, 15, generator=g)
        y, side = torch.randint(0, 4, (16,), generator=g), torch.arange(16) % 2
        label, domain = net(x, 0.3 + 0.1 * step)
        loss = F.cross_entropy(label, y) + F.cross_entropy(domain, side)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
