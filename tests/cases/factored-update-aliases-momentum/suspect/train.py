import torch
import torch.nn as nn
import torch.nn.functional as F

from optimizers import CAME

torch.manual_seed(91)
net = nn.Sequential(nn.Linear(16, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 8))
optimizer = CAME(net.parameters(), lr=2e-4)
gen = torch.Generator().manual_seed(92)
for step in range(5):
    x = torch.randn(24, 16, generator=gen)
    optimizer.zero_grad()
    loss = F.mse_loss(net(x), x[:, :8].sin())
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.8f}")
