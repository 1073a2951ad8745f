import torch
import torch.nn as nn

torch.manual_seed(260)
net = nn.Sequential(nn.Linear(7, 21), nn.SiLU(), nn.Linear(21, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, dampening=0.1)
gen = torch.Generator().manual_seed(261)
for step in range(4):
    opt.zero_grad()
    total = 0.0
    for _ in range(3):
        x, y = torch.randn(5, 7, generator=gen), torch.randint(0, 4, (5,), generator=gen)
        loss = nn.functional.cross_entropy(net(x), y) / 3
        loss.backward()
        total += loss.item()
    opt.step()
    print(step, total.hex())
