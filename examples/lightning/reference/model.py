"""A tiny GPT whose feed-forward gate is an autograd function: it keeps the inputs and works the gate out again."""

import torch
from torch import nn
from torch.nn import functional as F


class SwiGLU(torch.autograd.Function):
    """silu(gate) * up"""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        s = torch.sigmoid(gate)
        return grad * up * s * (1 + gate * (1 - s)), grad * gate * s


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate, self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(SwiGLU.apply(self.gate(y), self.up(y)))


class TinyGPT(nn.Module):
    def __init__(self, vocabulary, width, depth, length):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))
