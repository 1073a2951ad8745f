import torch
import torch.nn as nn


class CharRNN(nn.Module):
    def __init__(self, vocab=40, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.cell = nn.LSTMCell(dim, dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = c = torch.zeros(ids.size(0), self.out.in_features)
        outs = []
        for x in self.emb(ids).unbind(1):
            h, c = self.cell(x, (h, c))
            outs.append(h)
        return self.out(torch.stack(outs, 1))
