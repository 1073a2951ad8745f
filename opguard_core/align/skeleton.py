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

    Cost: a few passes, plus k log k in Python for the k values that some other value crosses.
    """
    count = len(values)
    kept = np.ones(count, bool)
    if count < 2:
        return kept
    # A value above all before it and below all after it is in every longest subsequence and cuts the rest in two.
    before = np.maximum.accumulate(values)
    after = np.minimum.accumulate(values[::-1])[::-1]
    crossed = np.flatnonzero((before != values) | (after != values))
    kept[crossed] = _patience(values[crossed])
    return kept


def _patience(values: Ints) -> Flags:
    count = len(values)
    if not count:
        return np.zeros(0, bool)
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
