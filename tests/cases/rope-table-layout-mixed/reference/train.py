import torch
import torch.nn as nn

import rope


class Mixer(nn.Module):
    def __init__(self, dim=32, heads=2):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        theta = rope.angles(x.size(1), q.size(-1))
        q, k = rope.apply(q, theta), rope.apply(k, theta)
        w = (q @ k.transpose(-1, -2) * q.size(-1) ** -0.5).softmax(-1)
        return x + self.out((w @ v).transpose(1, 2).flatten(2))


class Denoiser(nn.Module):
    """Predicts the noise in a sequence of codec frames."""

    def __init__(self, width=10, dim=32, depth=2):
        super().__init__()
        self.inp, self.out = nn.Linear(width, dim), nn.Linear(dim, width)
        self.layers = nn.Sequential(*[Mixer(dim) for _ in range(depth)])

    def forward(self, x):
        return self.out(self.layers(self.inp(x)))


def main():
    torch.manual_seed(31)
    net = Denoiser()
    opt = torch.optim.NAdam(net.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(32)
    for step in range(4):
        clean = torch.randn(4, 9, 10, generator=g).cumsum(1)
        noise = torch.randn(4, 9, 10, generator=g)
        loss = (net(clean + noise) - noise).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
