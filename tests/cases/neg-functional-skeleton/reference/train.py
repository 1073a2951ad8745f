import torch
import torch.nn as nn

torch.manual_seed(270)
net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
gen = torch.Generator().manual_seed(271)
for step in range(5):
    x, y = torch.randn(9, 6, generator=gen), torch.randint(0, 3, (9,), generator=gen)
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item().hex())
