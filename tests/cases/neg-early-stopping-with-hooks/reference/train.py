import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(170)
net = nn.Sequential(nn.Linear(11, 22), nn.BatchNorm1d(22), nn.GELU(), nn.Dropout(0.2), nn.Linear(22, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.MultiStepLR(opt, [2, 4], gamma=0.3)
x, y = torch.randn(80, 11), torch.randint(0, 3, (80,))
for step in range(5):
    b = slice(12 * step, 12 * step + 12)
    loss = F.cross_entropy(net(x[b]), y[b], label_smoothing=0.1)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    print("loss", step, loss.item().hex())
