"""A small encoder that says which stride a progression has."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, vocabulary: int, width: int, classes: int, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        block = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=64, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(block, num_layers=depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def pooled(self, ids: torch.Tensor) -> torch.Tensor:
        return self.body(self.embed(ids)).mean(dim=1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.pooled(ids))
