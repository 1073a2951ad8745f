"""The corpus and the stream of micro-batches, moved out of the training script."""

import torch


def build_corpus(vocabulary: int, num_sequences: int, length: int) -> torch.Tensor:
    """Arithmetic progressions modulo the vocabulary, each with its own start and stride."""
    generator = torch.Generator().manual_seed(7)
    start = torch.randint(vocabulary, (num_sequences, 1), generator=generator)
    stride = torch.randint(1, 6, (num_sequences, 1), generator=generator)
    return (start + stride * torch.arange(length + 1)) % vocabulary


class MicroBatches:
    """An endless stream of groups of micro-batches."""

    def __init__(self, data: torch.Tensor, size: int, per_group: int) -> None:
        self.pieces = data.split(size)
        self.per_group = per_group
        self.position = 0

    def next_group(self) -> list[torch.Tensor]:
        group = []
        for _ in range(self.per_group):
            group.append(self.pieces[self.position % len(self.pieces)])
            self.position += 1
        return group
