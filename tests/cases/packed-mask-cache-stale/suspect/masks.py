import functools

import torch


class Packing:
    """Boundaries of the documents in one packed row."""

    def __init__(self, lengths):
        self.lengths = list(lengths)

    def __len__(self):
        return sum(self.lengths)

    def __eq__(self, other):
        return len(self) == len(other)

    def __hash__(self):
        return hash(len(self))

    def owners(self):
        return torch.cat([torch.full((n,), i) for i, n in enumerate(self.lengths)])


@functools.lru_cache(maxsize=8)
def block_causal(packing):
    owner = packing.owners()
    position = torch.arange(len(packing))
    return (position[:, None] >= position) & (owner[:, None] == owner)
