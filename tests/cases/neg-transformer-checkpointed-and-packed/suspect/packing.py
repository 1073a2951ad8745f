from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Pack:
    inputs: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    hidden: torch.Tensor  # True where attention must not look


def pack(ids, lengths):
    total = sum(lengths)
    visible = torch.zeros(total, total, dtype=torch.bool)
    positions, start = [], 0
    for n in lengths:
        for i in range(n):
            visible[start + i, start:start + i + 1] = True
        positions.extend(range(n))
        start += n
    return Pack(ids[:total], ids[1:total + 1], torch.tensor(positions), visible.logical_not())
