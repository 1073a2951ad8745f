import torch
import torch.nn as nn
from torch.func import functional_call


class Average:
    def __init__(self, net, decay):
        self.net, self.decay = net, decay
        self.weights = {name: p.detach().clone() for name, p in net.named_parameters()}

    @torch.no_grad()
    def update(self):
        for name, p in self.net.named_parameters():
            self.weights[name].mul_(self.decay).add_(p, alpha=1 - self.decay)

    @torch.no_grad()
    def __call__(self, x):
        self.net.eval()
        out = functional_call(self.net, self.weights, (x,))
        self.net.train()
        return out


def main():
    torch.manual_seed(280)
    net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 1))
    average = Average(net, 0.9)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    x, y = torch.randn(60, 6), torch.randn(60)
    for step in range(5):
        rows = slice(10 * step, 10 * step + 10)
        loss = (net(x[rows]).squeeze(1) - y[rows]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        average.update()
        held = (average(x[50:]).squeeze(1) - y[50:]).square().mean()
        print(step, loss.item().hex(), held.item().hex())


main()
