import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(nn.Module):
    def __init__(self, vocab=30, dim=12, classes=3):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, classes)

    def encode(self, ids, lengths):
        packed = pack_padded_sequence(self.emb(ids), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = self.rnn(packed)
        return pad_packed_sequence(hidden, batch_first=True)[0]

    def forward(self, ids, lengths):
        out = self.encode(ids, lengths)
        return self.head(out[:, -1])
