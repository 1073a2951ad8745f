import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call


class Loop:
    def __init__(self, net):
        self.net = net
        self.params = dict(net.named_parameters())
        self.opt = torch.optim.SGD(self.params.values(), lr=0.05)

    def loss(self, x, y):
        state = {**self.params, **{name: b.clone() for name, b in self.net.named_buffers()}}
        return F.cross_entropy(functional_call(self.net, state, (x,)), y)

    def step(self, x, y):
        loss = self.loss(x, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, x, y):
        self.net.eval()
        value = self.loss(x, y).item()
        self.net.train()
        return value


torch.manual_seed(290)
loop = Loop(nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2)))
x, y = torch.randn(70, 6), torch.randint(0, 2, (70,))
for step in range(6):
    rows = slice(10 * step, 10 * step + 10)
    print(step, f"{loop.step(x[rows], y[rows]):.9g}")
    if (step + 1) % 3 == 0:
        print("eval", f"{loop.evaluate(x[60:], y[60:]):.9g}")
