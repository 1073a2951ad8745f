import torch
import torch.nn as nn


class WordModel(nn.Module):
    """Predicts a word from the mean of its context; input and output vectors are shared."""

    def __init__(self, vocab=50, dim=20):
        super().__init__()
        self.words = nn.Embedding(vocab, dim)
        self.mix = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, vocab, bias=False)
        self.out.weight = self.words.weight

    def forward(self, context):
        return self.out(torch.tanh(self.mix(self.words(context).mean(1))))
