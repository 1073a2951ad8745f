import torch
import torch.nn as nn


class TextCNN(nn.Module):
    """Convolutions of three widths over word vectors, max over time, one linear layer."""

    def __init__(self, vocab=120, dim=24, widths=(2, 3, 4), classes=5):
        super().__init__()
        self.words = nn.Embedding(vocab, dim)
        self.convs = nn.ModuleList(nn.Conv1d(dim, 16, w) for w in widths)
        self.out = nn.Linear(16 * len(widths), classes)

    def forward(self, ids):
        x = self.words(ids).transpose(1, 2)
        pooled = [torch.relu(conv(x)).amax(-1) for conv in self.convs]
        return self.out(torch.cat(pooled, dim=1))
