import torch
import torch.nn as nn
import torch.nn.functional as F

from muon import Muon


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        h = self.n1(x)
        q, k, v = (f(h).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = F.rms_norm(q, (q.size(-1),)), F.rms_norm(k, (k.size(-1),))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.relu(self.up(self.n2(x))) ** 2)


class Gpt(nn.Module):
    def __init__(self, vocab=40, dim=24):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, 3) for _ in range(2))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids)
        for b in self.blocks:
            x = b(x)
        return 15 * torch.tanh(self.head(x) / 15)


def main():
    torch.manual_seed(91)
    net = Gpt()
    muon = Muon([p for p in net.blocks.parameters() if p.ndim == 2])
    adam = torch.optim.Adam([*net.tok.parameters(), *net.head.parameters(), *(p for p in net.blocks.parameters() if p.ndim < 2)], lr=3e-3, foreach=False)
    g = torch.Generator().manual_seed(92)
    for step in range(4):
        for o in (muon, adam):
            for group in o.param_groups:
                group.setdefault("base", group["lr"])
                group["lr"] = group["base"] * min(1.0, (step + 1) / 3)
            o.zero_grad()
        for micro in range(2):
            ids = torch.randint(0, 40, (3, 15), generator=g)
            loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            (loss / 2).backward()
            print(f"step {step}.{micro} loss {loss.item():.7f}")
        muon.step()
        adam.step()


main()
