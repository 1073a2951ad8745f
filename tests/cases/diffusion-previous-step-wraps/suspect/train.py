import torch
import torch.nn as nn
import torch.nn.functional as F

from schedule import NoiseSchedule

T = 30


class Denoiser(nn.Module):
    def __init__(self, d=8, width=40):
        super().__init__()
        self.time = nn.Embedding(T, width)
        self.a, self.b, self.c = nn.Linear(d, width), nn.Linear(width, width), nn.Linear(width, d)

    def forward(self, x, t):
        h = F.silu(self.a(x) + self.time(t))
        return self.c(h + F.silu(self.b(h)))


class Diffusion:
    def __init__(self, net, schedule):
        self.net, self.schedule = net, schedule

    def loss(self, x0, t, noise):
        weight = 1 / (0.1 + self.schedule.posterior_variance(t))
        prediction = self.net(self.schedule.add_noise(x0, noise, t), t)
        return (weight * (prediction - noise).square().mean(1)).mean()


def main():
    torch.manual_seed(231)
    model = Diffusion(Denoiser(), NoiseSchedule(T))
    optimizer = torch.optim.RAdam(model.net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(240)
    for step in range(6):
        x0 = torch.randn(6, 8, generator=gen).clamp(-1, 1)
        t = torch.randint(0, T, (6,), generator=gen)
        noise = torch.randn(6, 8, generator=gen)
        optimizer.zero_grad()
        loss = model.loss(x0, t, noise)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f} t {t.tolist()}")


if __name__ == "__main__":
    main()
