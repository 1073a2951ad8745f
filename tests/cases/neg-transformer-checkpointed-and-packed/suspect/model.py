import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, dim, heads, qkv, proj):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, qkv, proj

    def forward(self, x, hidden):
        n, dim = x.shape
        q, k, v = self.qkv(x).view(n, 3, self.heads, dim // self.heads).permute(1, 2, 0, 3)
        scores = torch.matmul(q, k.mT) / (dim // self.heads) ** 0.5
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
        return self.proj(torch.matmul(weights, v).permute(1, 0, 2).reshape(n, dim))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        qkv, proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.attention = Attention(dim, heads, qkv, proj)
        self.up, self.act, self.down = nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)
        self.before_attention, self.before_ff = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x, hidden):
        x = x + self.attention(self.before_attention(x), hidden)
        return x + self.down(self.act(self.up(self.before_ff(x))))


class LM(nn.Module):
    def __init__(self, vocab=26, dim=16, heads=2, depth=2, context=12):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(context, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, pack):
        h = self.tok(pack.inputs) + self.pos(pack.positions)
        for layer in self.layers:
            h = checkpoint(layer, h, pack.hidden, use_reentrant=False)
        return torch.nn.functional.cross_entropy(self.head(h), pack.targets)
