"""Sentences of random tokens; the first few of each are the prompt."""

import torch


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count: int = 32, vocabulary: int = 64) -> None:
        generator = torch.Generator().manual_seed(182)
        lengths = torch.randint(8, 15, (count,), generator=generator)
        self.rows = [self.row(int(length), vocabulary, generator) for length in lengths]

    @staticmethod
    def row(length: int, vocabulary: int, generator: torch.Generator) -> dict:
        tokens = torch.randint(1, vocabulary, (length,), generator=generator)
        return {"input_ids": tokens.tolist(), "prompt": 2 + length % 3}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return self.rows[index]
