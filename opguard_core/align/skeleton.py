"""The skeleton: the largest set of pairs that keep their order on both sides. Between its members lie the gaps."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from opguard_core.align.columns import Flags, Ints


def longest_rising(values: Ints) -> Flags:
    """Mark one longest strictly rising subsequence.

    Args:
        values: int64[n], distinct.

    Returns:
        bool[n].

    Cost: one pass when already rising, else n log n in Python.
    """
    count = len(values)
    if count < 2 or bool((values[1:] > values[:-1]).all()):
        return np.ones(count, bool)
    tails: list[int] = []  # smallest last value of a rising run of each length
    tail_at: list[int] = []
    before = [-1] * count
    for at, value in enumerate(values.tolist()):
        if not tails or value > tails[-1]:
            before[at] = tail_at[-1] if tail_at else -1
            tails.append(value)
            tail_at.append(at)
            continue
        length = bisect_left(tails, value)
        before[at] = tail_at[length - 1] if length else -1
        tails[length] = value
        tail_at[length] = at
    kept = np.zeros(count, bool)
    at = tail_at[-1]
    while at >= 0:
        kept[at] = True
        at = before[at]
    return kept
