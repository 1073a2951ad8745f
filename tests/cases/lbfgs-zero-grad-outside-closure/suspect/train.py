import torch
import torch.nn.functional as F
from torch import nn


def make_data(points=48):
    x = torch.linspace(-2, 2, points).unsqueeze(1)
    return x, torch.sin(2 * x) + 0.1 * torch.randn(points, 1)


def fit(net, x, y, steps):
    opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3, history_size=5)

    def closure():
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss

    for step in range(steps):
        opt.zero_grad()
        loss = opt.step(closure)
        print(f"{step} {loss.item():.9g}")


if __name__ == "__main__":
    torch.manual_seed(7)
    data = make_data()
    fit(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)), *data, steps=4)
