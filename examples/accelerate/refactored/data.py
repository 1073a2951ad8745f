"""Arithmetic progressions modulo the vocabulary; the label is the stride."""

import torch
from torch.utils.data import TensorDataset


def progressions(vocabulary: int, length: int, classes: int, count: int = 96) -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    start = torch.randint(vocabulary, (count, 1), generator=generator)
    label = torch.randint(classes, (count, 1), generator=generator)
    tokens = (start + (label + 1) * torch.arange(length)) % vocabulary
    return TensorDataset(tokens, label.squeeze(1))
