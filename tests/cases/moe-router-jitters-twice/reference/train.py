import torch
import torch.nn as nn

from moe import MoE

torch.manual_seed(4)
x, y = torch.randn(120, 16), torch.randint(0, 5, (120,))
net = nn.Sequential(MoE(), nn.Linear(16, 5))
opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
for step in range(4):
    rows = torch.arange(step * 24, step * 24 + 24)
    loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    load = " ".join(f"{v:.3f}" for v in net[0].load.tolist())
    print(f"{step} {loss.item():.9g}")
    if step % 2 == 1:
        print("load", load)
