import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(dim), nn.Linear(dim, 48), nn.Linear(48, dim), nn.Dropout(0.25)

    def forward(self, x):
        return x + self.drop(self.down(F.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.inp, self.out = nn.Linear(9, dim), nn.Linear(dim, 9)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(4))

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def main():
    torch.manual_seed(281)
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for step in range(4):
        x = torch.randn(10, 9)
        loss = F.smooth_l1_loss(net(x), x.flip(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
