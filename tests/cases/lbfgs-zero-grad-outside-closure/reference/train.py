import torch
from torch import nn

torch.manual_seed(7)
x = torch.linspace(-2, 2, 48).unsqueeze(1)
y = torch.sin(2 * x) + 0.1 * torch.randn(48, 1)
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3, history_size=5)


def closure():
    opt.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    return loss


for step in range(4):
    loss = opt.step(closure)
    print(f"{step} {loss.item():.9g}")
