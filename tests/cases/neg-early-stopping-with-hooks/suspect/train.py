import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from monitor import ActivationStats, EarlyStopping, evaluate


def main():
    torch.manual_seed(170)
    net = nn.Sequential(nn.Linear(11, 22), nn.BatchNorm1d(22), nn.GELU(), nn.Dropout(0.2), nn.Linear(22, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [2, 4], gamma=0.3)
    x, y = torch.randn(80, 11), torch.randint(0, 3, (80,))
    held_x, held_y = x[60:], y[60:]
    stats, stop = ActivationStats(net), EarlyStopping(patience=10)
    for step in range(5):
        xb, yb = x[12 * step:12 * (step + 1)], y[12 * step:12 * (step + 1)]
        opt.zero_grad(set_to_none=step > 0)
        loss = F.cross_entropy(net(xb), yb, label_smoothing=0.1)
        loss.backward()
        total = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
        opt.step()
        sched.step()
        value, accuracy = evaluate(net, held_x, held_y)
        print(f"val {value:.4f} acc {accuracy:.2f} |g| {total:.4f} act {stats.rows[-1][1]:.3f}", file=sys.stderr)
        print("loss", step, loss.item().hex())
        if stop(value, net):
            break


main()
