"""Points around class centres, and the part of them that one rank sees."""

import torch


class Blobs:
    def __init__(self, count: int, features: int, classes: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.labels = torch.randint(classes, (count,), generator=generator)
        centres = torch.randn(classes, features, generator=generator)
        self.features = centres[self.labels] + 0.5 * torch.randn(count, features, generator=generator)


class Shard:
    """Every `world`-th row of a shuffle that all ranks share, in full batches."""

    def __init__(self, count: int, rank: int, world: int, size: int) -> None:
        self.count, self.rank, self.world, self.size = count, rank, world, size

    def batches(self, epoch: int) -> list[torch.Tensor]:
        shuffled = torch.randperm(self.count, generator=torch.Generator().manual_seed(epoch))
        mine = shuffled[self.rank :: self.world]
        return [rows for rows in mine.split(self.size) if len(rows) == self.size]
