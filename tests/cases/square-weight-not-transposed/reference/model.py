import torch.nn as nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, dim, hidden, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(F.rms_norm(x, x.shape[-1:])).chunk(3, -1))
        a = (q @ k.transpose(-1, -2) / q.size(-1) ** 0.5).softmax(-1) @ v
        x = x + self.proj(a.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(F.rms_norm(x, x.shape[-1:]))))


class Encoder(nn.Module):
    def __init__(self, vocab=40, dim=24, hidden=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.h = nn.ModuleList(Layer(dim, hidden) for _ in range(2))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.h:
            x = layer(x)
        return self.head(x)
