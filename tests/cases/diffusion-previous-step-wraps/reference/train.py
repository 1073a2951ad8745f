import torch
import torch.nn as nn
import torch.nn.functional as F

T = 30


class Denoiser(nn.Module):
    def __init__(self, d=8, width=40):
        super().__init__()
        self.time = nn.Embedding(T, width)
        self.a, self.b, self.c = nn.Linear(d, width), nn.Linear(width, width), nn.Linear(width, d)

    def forward(self, x, t):
        h = F.silu(self.a(x) + self.time(t))
        return self.c(h + F.silu(self.b(h)))


def main():
    torch.manual_seed(231)
    net = Denoiser()
    opt = torch.optim.RAdam(net.parameters(), lr=3e-3)
    betas = torch.linspace(1e-3, 0.2, T)
    bar = (1 - betas).cumprod(0)
    bar_prev = F.pad(bar[:-1], (1, 0), value=1.0)
    g = torch.Generator().manual_seed(240)
    for step in range(6):
        x0 = torch.randn(6, 8, generator=g).clamp(-1, 1)
        t = torch.randint(0, T, (6,), generator=g)
        noise = torch.randn(6, 8, generator=g)
        xt = bar[t].sqrt()[:, None] * x0 + (1 - bar[t]).sqrt()[:, None] * noise
        variance = betas[t] * (1 - bar_prev[t]) / (1 - bar[t])
        weight = 1 / (0.1 + variance)
        loss = (weight * (net(xt, t) - noise).square().mean(1)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
