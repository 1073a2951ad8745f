import torch
import torch.nn as nn

from features import Recorder

torch.manual_seed(210)
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 2))
rec = Recorder([net[1], net[3]])
opt = torch.optim.SGD(net.parameters(), lr=0.05)
x, y = torch.randn(70, 6), torch.randint(0, 2, (70,))
rec.attach()
for step in range(6):
    rows = slice(step * 10, step * 10 + 10)
    loss = nn.functional.cross_entropy(net(x[rows]), y[rows]) + 0.01 * rec.penalty()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.9g}")
    if step == 2:
        rec.detach()
        with torch.no_grad():
            print("held out", f"{nn.functional.cross_entropy(net(x[60:]), y[60:]).item():.9g}")
        rec.attach()
