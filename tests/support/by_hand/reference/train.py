import torch
import torch.nn as nn
import torch.nn.functional as F
from muon import Muon


class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim)
        self.up = nn.Linear(dim, 3 * dim, bias=False)
        self.down = nn.Linear(3 * dim, dim, bias=False)

    def forward(self, x):
        return x + self.down(F.relu(self.up(self.norm(x))).square())


class Lm(nn.Module):
    def __init__(self, vocab=48, dim=24):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.mix = nn.Linear(dim, dim, bias=False)
        self.blocks = nn.ModuleList(Mlp(dim) for _ in range(2))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.tok(ids)
        x = x + self.mix(x.cumsum(1) / torch.arange(1, ids.size(1) + 1)[:, None])
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def main():
    torch.manual_seed(3)
    net = Lm()
    hidden = [p for n, p in net.named_parameters() if p.ndim == 2 and "tok" not in n and "head" not in n]
    rest = [p for n, p in net.named_parameters() if not any(p is h for h in hidden)]
    optimizers = [Muon(hidden), torch.optim.AdamW(rest, lr=3e-3)]
    g = torch.Generator().manual_seed(4)
    for step in range(5):
        ids = torch.randint(0, 48, (4, 17), generator=g)
        loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
        print(f"step {step} loss {loss.item():.7f}")


main()
