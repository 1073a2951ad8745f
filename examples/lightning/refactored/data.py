"""Arithmetic progressions modulo the vocabulary, as a data module."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Progressions(lightning.LightningDataModule):
    def __init__(self, vocabulary: int, length: int) -> None:
        super().__init__()
        self.vocabulary, self.length = vocabulary, length

    def rows(self, count: int, seed: int) -> TensorDataset:
        generator = torch.Generator().manual_seed(seed)
        start = torch.randint(self.vocabulary, (count, 1), generator=generator)
        stride = torch.randint(1, 6, (count, 1), generator=generator)
        return TensorDataset((start + stride * torch.arange(self.length + 1)) % self.vocabulary)

    def train_dataloader(self):
        return DataLoader(self.rows(32, seed=7), batch_size=4, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.rows(8, seed=8), batch_size=4)
