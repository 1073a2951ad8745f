"""The network."""

import torch
from heads import look, separate
from torch import nn


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, hidden, allowed):
        query, key, value = separate(self.qkv(hidden), self.heads)
        return self.out(look(query, key, value, allowed).transpose(1, 2).reshape(hidden.shape))


def residual(hidden, change):
    return hidden + change


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden, allowed):
        # pre-norm, twice
        hidden = residual(hidden, self.attention(self.norm_attention(hidden), allowed))
        return residual(hidden, self.mlp(self.norm_mlp(hidden)))


class TinyGPT(nn.Module):
    def __init__(self, words=48, width=32, heads=2, depth=2, context=32):
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids):
        columns, device = ids.shape[1], ids.device
        where = self.positions(torch.arange(columns, device=device))  # before the mask: these two do not depend on each other
        allowed = torch.ones(columns, columns, dtype=torch.bool, device=device).tril()
        hidden = self.tokens(ids) + where
        for block in self.blocks:
            hidden = block(hidden, allowed)
        return self.norm(hidden) @ self.tokens.weight.T
