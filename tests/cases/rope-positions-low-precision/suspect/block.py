import torch
import torch.nn as nn

from rotary import Rotary


class Block(nn.Module):
    def __init__(self, dim=32, heads=2):
        super().__init__()
        self.heads, self.rotary = heads, Rotary(dim // heads)
        self.norm = nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.rotary(q), self.rotary(k)
        t = x.size(1)
        scores = (q @ k.transpose(-1, -2)).float() * q.size(-1) ** -0.5
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), float("-inf"))
        y = scores.softmax(-1).to(v.dtype) @ v
        return x + self.out(y.transpose(1, 2).flatten(2))
