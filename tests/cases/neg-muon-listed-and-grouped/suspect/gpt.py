import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.shape = (heads, dim // heads)
        self.q, self.k, self.v, self.o = [nn.Linear(dim, dim, bias=False) for _ in range(4)]

    def forward(self, x):
        q = self.q(x).unflatten(-1, self.shape).transpose(1, 2)
        k = self.k(x).unflatten(-1, self.shape).transpose(1, 2)
        v = self.v(x).unflatten(-1, self.shape).transpose(1, 2)
        q, k = F.rms_norm(q, self.shape[1:]), F.rms_norm(k, self.shape[1:])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up = nn.Linear(dim, 2 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x):
        return self.down(self.up(x).relu().pow(2))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attention, self.ffn = Attention(dim, heads), FeedForward(dim)
        self.norms = nn.ModuleList([nn.RMSNorm(dim), nn.RMSNorm(dim)])

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.ffn(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self, vocab=40, dim=24, heads=3, depth=2, cap=15):
        super().__init__()
        self.cap = cap
        self.tok = nn.Embedding(vocab, dim)
        self.layers = nn.Sequential(*(Layer(dim, heads) for _ in range(depth)))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids, labels):
        logits = self.cap * (self.head(self.layers(self.tok(ids))) / self.cap).tanh()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
