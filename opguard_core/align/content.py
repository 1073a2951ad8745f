"""Pairing by content: events of equal keys, where both sides have equally many of them.

"Occurs once" would be too strict, forward and recompute and cast copies make most values occur two to four times; a class
that is larger on one side is ambiguous and left to later passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.columns import Flags, Ints, Words
from opguard_core.align.sets import is_first


def join(reference_keys: Words, suspect_keys: Words, reference_order: NDArray[Any], suspect_order: NDArray[Any]) -> tuple[Ints, Ints]:
    """Pair equal keys whose classes have the same size on both sides, in the given order inside a class.

    Args:
        reference_keys: uint64[a].
        suspect_keys: uint64[b].
        reference_order: Sort key inside a class, a rising tie-break by position is added.
        suspect_order: The same for the suspect.

    Returns:
        Positions int64[k] into the reference's and the suspect's keys, paired by index.

    Cost: two sorts.
    """
    left = np.lexsort((reference_order, reference_keys))
    right = np.lexsort((suspect_order, suspect_keys))
    keep_left, keep_right = _equal_classes(reference_keys[left], suspect_keys[right])
    return left[keep_left], right[keep_right]


def _equal_classes(left: Words, right: Words) -> tuple[Flags, Flags]:
    """For two sorted key columns, the rows whose class is as large on the other side."""
    left_keys, left_counts = _runs(left)
    right_keys, right_counts = _runs(right)
    left_good = _counterpart(left_keys, left_counts, right_keys, right_counts)
    right_good = _counterpart(right_keys, right_counts, left_keys, left_counts)
    return np.repeat(left_good, left_counts), np.repeat(right_good, right_counts)


def _runs(keys: Words) -> tuple[Words, Ints]:
    """Distinct keys of a sorted column and how often each occurs."""
    starts = np.flatnonzero(is_first(keys))
    ends = np.append(starts[1:], len(keys)) if len(keys) else starts
    return keys[starts], ends - starts


def _counterpart(keys: Words, counts: Ints, other_keys: Words, other_counts: Ints) -> Flags:
    if not len(keys) or not len(other_keys):
        return np.zeros(len(keys), bool)
    at = np.minimum(np.searchsorted(other_keys, keys), len(other_keys) - 1)
    good: Flags = (other_keys[at] == keys) & (other_counts[at] == counts)
    return good
