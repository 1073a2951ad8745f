import torch
from model import Tower
from torch.nn import functional as F

torch.manual_seed(33)
net = Tower()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
gen = torch.Generator().manual_seed(34)
for step in range(4):
    x = torch.randn(3, 7, 24, generator=gen)
    loss = F.smooth_l1_loss(net(x), x.cumsum(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.6f}")
