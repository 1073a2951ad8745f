import torch
import torch.nn as nn

from quant import FakeQuant

torch.manual_seed(1)
net = nn.Sequential(nn.Linear(12, 20), nn.LeakyReLU(), FakeQuant(), nn.Linear(20, 20), nn.LeakyReLU(), FakeQuant(), nn.Linear(20, 3))
opt = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(6):
    x = torch.randn(16, 12) * (1 + 0.5 * step)
    y = torch.randint(0, 3, (16,))
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.9g}")
