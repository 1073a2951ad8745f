import torch
import torch.nn as nn
import torch.nn.functional as F

from layers import block, causal_bias, padding_bias


class Decoder(nn.Module):
    def __init__(self, vocab=64, dim=32, heads=4, width=14):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(width, dim)
        self.layers = nn.ModuleList(block(dim, heads) for _ in range(2))
        self.head = nn.Linear(dim, vocab)

    def embed(self, ids, position_ids=None):
        if position_ids is None:
            position_ids = torch.arange(ids.size(1)).expand_as(ids)
        return self.tok(ids) + self.pos(position_ids)

    def forward(self, ids, mask):
        hidden = self.embed(ids)
        bias, pad = causal_bias(ids.size(1)), padding_bias(mask)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=bias, src_key_padding_mask=pad)
        return self.head(hidden)


class CausalLoss(nn.Module):
    def forward(self, logits, ids, mask):
        labels = ids.masked_fill(mask == 0, -100)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
