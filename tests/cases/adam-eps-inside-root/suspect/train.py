import torch
import torch.nn as nn

from adam import Adam

torch.manual_seed(230)
net = nn.Sequential(nn.Linear(5, 10), nn.SELU(), nn.Linear(10, 1))
opt = Adam(net.parameters(), lr=0.01)
for step in range(4):
    x = torch.randn(8, 5)
    loss = (net(x).squeeze(1) - x.prod(1)).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.9g}")
