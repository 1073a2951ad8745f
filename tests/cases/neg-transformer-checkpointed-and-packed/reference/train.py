import math

import torch
import torch.nn as nn
import torch.nn.functional as F

DOCS = [[5, 7], [4, 4, 4], [12], [3, 9]]


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.heads = heads

    def forward(self, x, mask):
        q, k, v = self.qkv(self.n1(x)).chunk(3, dim=-1)
        q, k, v = [t.unflatten(-1, (self.heads, -1)).transpose(0, 1) for t in (q, k, v)]
        att = q @ k.transpose(1, 2) / math.sqrt(q.size(-1))
        att = att.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + self.proj((att @ v).transpose(0, 1).flatten(1))
        return x + self.ff(self.n2(x))


def main():
    torch.manual_seed(180)
    emb, pos = nn.Embedding(26, 16), nn.Embedding(12, 16)
    layers = nn.ModuleList(Layer(16, 2) for _ in range(2))
    head = nn.Linear(16, 26)
    parts = nn.ModuleList([emb, pos, layers, head])
    opt = torch.optim.AdamW(parts.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(181)
    for step, lengths in enumerate(DOCS):
        ids = torch.randint(0, 26, (13,), generator=gen)
        doc = torch.cat([torch.full((n,), i) for i, n in enumerate(lengths)])
        where = torch.cat([torch.arange(n) for n in lengths])
        mask = (doc[:, None] == doc[None, :]) & torch.ones(12, 12, dtype=torch.bool).tril()
        h = emb(ids[:-1]) + pos(where)
        for layer in layers:
            h = layer(h, mask)
        loss = F.cross_entropy(head(h), ids[1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


main()
