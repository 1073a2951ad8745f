import torch.nn as nn


class Tagger(nn.Module):
    """Sequence labelling with a bidirectional GRU."""

    def __init__(self, vocab=60, tags=7, dim=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, tags)

    def forward(self, ids):
        return self.out(self.rnn(self.emb(ids))[0])
