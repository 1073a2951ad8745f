import torch.nn as nn

from embeddings import RotaryEmbedding, apply_rotary


class Mixer(nn.Module):
    def __init__(self, dim=32, heads=2):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = apply_rotary(q, k, cos, sin)
        scores = q @ k.transpose(-1, -2) * q.size(-1) ** -0.5
        mixed = scores.softmax(-1) @ v
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Denoiser(nn.Module):
    def __init__(self, width=10, dim=32, depth=2, heads=2):
        super().__init__()
        self.inp, self.out = nn.Linear(width, dim), nn.Linear(dim, width)
        self.layers = nn.ModuleList(Mixer(dim, heads) for _ in range(depth))
        self.rotary = RotaryEmbedding(dim // heads)

    def forward(self, x):
        cos, sin = self.rotary(x.size(1))
        h = self.inp(x)
        for layer in self.layers:
            h = layer(h, cos, sin)
        return self.out(h)
