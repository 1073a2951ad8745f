import copy

import torch
import torch.nn as nn

torch.manual_seed(280)
net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 1))
average = copy.deepcopy(net).eval().requires_grad_(False)
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
x, y = torch.randn(60, 6), torch.randn(60)
for step in range(5):
    rows = slice(10 * step, 10 * step + 10)
    loss = (net(x[rows]).squeeze(1) - y[rows]).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for a, p in zip(average.parameters(), net.parameters()):
            a.mul_(0.9).add_(p, alpha=0.1)
        for a, b in zip(average.buffers(), net.buffers()):
            a.copy_(b)
    held = (average(x[50:]).squeeze(1) - y[50:]).square().mean()
    print(step, loss.item().hex(), held.item().hex())
