import torch
import torch.nn as nn
import torch.nn.functional as F


class Decoder(nn.Module):
    def __init__(self, vocab=64, dim=32, heads=4, width=14):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(width, dim)
        layer = lambda: nn.TransformerEncoderLayer(dim, heads, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList([layer(), layer()])
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids, mask):
        where = (mask.cumsum(-1) - 1).clamp(min=0)
        x = self.tok(ids) + self.pos(where)
        t = ids.size(1)
        causal = torch.full((t, t), float("-inf")).triu(1)
        pad = torch.zeros(mask.shape).masked_fill(mask == 0, -1e9)
        for layer in self.layers:
            x = layer(x, src_mask=causal, src_key_padding_mask=pad)
        return self.head(x)


def loss_fn(logits, ids, mask):
    labels = ids.masked_fill(mask == 0, -100)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
