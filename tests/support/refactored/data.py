"""The corpus."""

import torch


def progressions(words, rows, columns):
    source = torch.Generator().manual_seed(7)
    first = torch.randint(words, (rows, 1), generator=source)
    pace = torch.randint(1, 6, (rows, 1), generator=source)
    travelled = pace * torch.arange(columns + 1)
    return (first + travelled) % words


class GroupStream:
    def __init__(self, rows, size, per_group):
        self.chunks = rows.split(size)
        self.per_group, self.at = per_group, 0

    def next_group(self):
        numbers = range(self.at, self.at + self.per_group)
        self.at += self.per_group
        return [self.chunks[number % len(self.chunks)] for number in numbers]
