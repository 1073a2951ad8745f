import torch
import torch.nn as nn
import torch.nn.functional as F

from moe import SwitchLayer


class Net(nn.Module):
    def __init__(self, vocab=50, dim=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.moe = SwitchLayer(dim, experts=4, capacity=14)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.moe(self.emb(ids)))


def batch(step):
    g = torch.Generator().manual_seed(300 + step)
    ids = torch.randint(0, 50, (25,), generator=g)
    if step >= 3:
        ids[:14] = 7  # boilerplate: the same token over and over
    return ids[:-1], ids[1:]


def main():
    torch.manual_seed(131)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(5):
        x, y = batch(step)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
