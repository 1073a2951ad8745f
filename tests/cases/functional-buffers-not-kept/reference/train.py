import torch
import torch.nn as nn

torch.manual_seed(290)
net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
x, y = torch.randn(70, 6), torch.randint(0, 2, (70,))
for step in range(6):
    rows = slice(10 * step, 10 * step + 10)
    loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.9g}")
    if step % 3 == 2:
        net.eval()
        with torch.no_grad():
            print("eval", f"{nn.functional.cross_entropy(net(x[60:]), y[60:]).item():.9g}")
        net.train()
