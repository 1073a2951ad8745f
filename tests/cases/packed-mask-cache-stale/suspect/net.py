import torch.nn as nn
import torch.nn.functional as F

from masks import block_causal


class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, packing):
        q, k, v = (t.unsqueeze(0) for t in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=block_causal(packing))
        return x + self.out(mixed.squeeze(0))


class Packed(nn.Module):
    def __init__(self, vocab=36, dim=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Attention(dim) for _ in range(2))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids, packing):
        h = self.emb(ids)
        for layer in self.layers:
            h = layer(h, packing)
        return self.head(h)
