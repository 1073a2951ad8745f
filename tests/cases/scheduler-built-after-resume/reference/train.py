import os
import tempfile

import torch
from torch import nn


def objects():
    torch.manual_seed(51)
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    opt = torch.optim.Adam(net.parameters(), lr=0.02)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: 0.8**n)
    return net, opt, sched


def train(net, opt, sched, gen, steps):
    for _ in range(steps):
        x = torch.randn(16, 6, generator=gen)
        loss = (net(x)[:, 0] - x.sum(1).sin()).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(f"{loss.item():.6f}")


gen = torch.Generator().manual_seed(52)
net, opt, sched = objects()
train(net, opt, sched, gen, 3)
with tempfile.TemporaryDirectory() as tmp:
    path = os.path.join(tmp, "ckpt.pt")
    torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "sched": sched.state_dict()}, path)
    state = torch.load(path)
net, opt, sched = objects()
net.load_state_dict(state["net"])
opt.load_state_dict(state["opt"])
sched.load_state_dict(state["sched"])
train(net, opt, sched, gen, 4)
