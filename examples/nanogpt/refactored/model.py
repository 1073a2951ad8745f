"""The GPT, taking its settings as an argument."""

import math

import torch
from loss import TokenLoss
from torch import nn
from torch.nn import functional as F


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, width, count, dropout):
        super().__init__()
        self.count, self.dropout = count, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        q, k, v = (heads(part, self.count) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout * self.training, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, count, dropout):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, count, dropout)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.attention(self.norm_attention(x))
        return x + self.dropout(self.mlp(self.norm_mlp(x)))


class GPT(nn.Module):
    def __init__(self, settings):
        super().__init__()
        width = settings.n_embd
        self.tokens = nn.Embedding(settings.vocab_size, width)
        self.positions = nn.Embedding(settings.block_size, width)
        self.drop = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList([Block(width, settings.n_head, settings.dropout) for _ in range(settings.n_layer)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, settings.vocab_size, bias=False)
        self.tokens.weight = self.head.weight
        self.initialise(0.02 / math.sqrt(2 * settings.n_layer))

    def initialise(self, std_of_outputs):
        """Normal weights in the order of the modules, then those of the residual outputs again with a smaller spread."""
        for module in self.apply_order():
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        for block in self.blocks:
            for linear in (block.attention.out, block.mlp[2]):
                nn.init.normal_(linear.weight, mean=0.0, std=std_of_outputs)

    def apply_order(self):
        order = []
        self.apply(lambda module: order.append(module) if isinstance(module, (nn.Linear, nn.Embedding)) else None)
        return order

    def forward(self, idx, targets):
        x = self.drop(self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return TokenLoss.apply(logits.flatten(0, 1), targets.flatten())
