import torch
import torch.nn as nn


def build():
    torch.manual_seed(130)
    net = nn.Sequential(nn.Linear(9, 18), nn.Dropout(0.3), nn.Tanh(), nn.Linear(18, 2))
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3, amsgrad=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=5e-3, total_steps=8)
    return net, opt, sched


def batch(step):
    gen = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(14, 9, generator=gen)
    return x, x[:, :2].sin()


def train_step(net, opt, sched, ema, step):
    x, y = batch(step)
    loss = nn.functional.huber_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    with torch.no_grad():
        for name, p in net.named_parameters():
            ema[name].mul_(0.9).add_(p, alpha=0.1)
    print(step, loss.item().hex())
