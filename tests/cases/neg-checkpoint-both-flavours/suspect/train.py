import torch
import torch.nn as nn
import torch.nn.functional as F

from remat import Remat


class Block(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(dim), nn.Linear(dim, 48), nn.Linear(48, dim), nn.Dropout(0.25)

    def forward(self, x):
        h = F.gelu(self.up(self.norm(x)))
        return x + self.drop(self.down(h))


class Net(nn.Module):
    def __init__(self, dim=24, depth=4):
        super().__init__()
        self.inp, self.out = nn.Linear(9, dim), nn.Linear(dim, 9)
        self.blocks = nn.Sequential(*[Remat(Block(dim), use_reentrant=i % 2 == 0) for i in range(depth)])

    def forward(self, x):
        return self.out(self.blocks(self.inp(x)))


def fit(net, steps):
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for step in range(steps):
        x = torch.randn(10, 9)
        opt.zero_grad()
        loss = F.smooth_l1_loss(net(x), x.flip(-1))
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    torch.manual_seed(281)
    fit(Net(), 4)
