import torch
import torch.nn as nn
import torch.nn.functional as F

from came import Came


def main():
    torch.manual_seed(91)
    net = nn.Sequential(nn.Linear(16, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 8))
    opt = Came(net.parameters(), lr=2e-4)
    g = torch.Generator().manual_seed(92)
    for step in range(5):
        x = torch.randn(24, 16, generator=g)
        loss = F.mse_loss(net(x), x[:, :8].sin())
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.8f}")


if __name__ == "__main__":
    main()
