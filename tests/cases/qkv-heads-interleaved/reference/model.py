import torch
from torch import nn


class Attention(nn.Module):
    """The projection holds q, k and v of the first head, then of the second, and so on."""

    def __init__(self, dim, heads):
        super().__init__()
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.dense = nn.Linear(dim, dim)
        self.heads = heads

    def forward(self, x):
        b, t, c = x.shape
        fused = self.query_key_value(x).view(b, t, self.heads, 3 * c // self.heads)
        q, k, v = (part.transpose(1, 2) for part in fused.chunk(3, -1))
        mask = torch.full((t, t), float("-inf")).triu(1)
        att = (q @ k.transpose(-1, -2) / (c // self.heads) ** 0.5 + mask).softmax(-1)
        return self.dense((att @ v).transpose(1, 2).flatten(2))


class Tower(nn.Module):
    def __init__(self, dim=24, heads=4, layers=2):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.layers = nn.ModuleList(Attention(dim, heads) for _ in range(layers))

    def forward(self, x):
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return x
