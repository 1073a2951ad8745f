"""Device work that no boundary stands for and that may have touched observed tensors: how much of it lies between two events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from opguard_core.certify.devicework.names import told_apart
from opguard_core.trace.reader import RankTrace

NAMED = 4
"""Kernels named in a sentence."""

Span = tuple[int, int]
"""Two event numbers: work after the first one had begun, and before the second had."""


def touching(trace: RankTrace, spans: Iterable[Span]) -> Counter[tuple[str, str]]:
    """Count touching work that no boundary looked at, by kind and recorded name: also replays of what a boundary captured.

    Work before the first boundary of a rank is never counted: what it wrote was looked at when it was first read.

    Args:
        trace: The rank.
        spans: Where to look; work in several of them counts once.
    """
    table = trace.launches
    after = table.columns["after"]  # null with an event, but for the replay of what it captured
    within = np.zeros(len(after), bool)
    for first, last in spans:
        within |= (after >= max(first, 0)) & (after < last)
    chosen = np.flatnonzero(within & (table.columns["touches"] != 0))  # not told counts as touching
    kinds, kernels = table.strings["kind"], table.strings["kernel"]
    codes = table.columns["kind"][chosen].astype(np.int64) * max(len(kernels), 1) + table.columns["kernel"][chosen]
    distinct, inverse = np.unique(codes, return_inverse=True)
    totals = np.bincount(inverse.reshape(-1), weights=table.columns["count"][chosen].astype(np.float64), minlength=len(distinct))
    return Counter(
        {
            (kinds[code // len(kernels)], kernels[code % len(kernels)]): int(total)
            for code, total in zip(distinct.tolist(), totals.tolist(), strict=True)
        }
    )


def named(works: Counter[tuple[str, str]]) -> str:
    """The most frequent ones in a few words."""
    ordered = sorted(works.items(), key=lambda item: (-item[1], item[0]))
    names = told_apart((work for work, _ in ordered), 80)
    more = f" and {len(ordered) - NAMED} more kernels" if len(ordered) > NAMED else ""
    return ", ".join(f"{names[work]} x{count}" for work, count in ordered[:NAMED]) + more
