"""Pairing by content: events of equal keys, where both sides have equally many of them.

"Occurs once" would be too strict, forward and recompute and cast copies make most values occur two to four times; a class
that is larger on one side is ambiguous and left to later passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.columns import Flags, Ints, Words


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
    left_keys, left_class, left_counts = np.unique(left, return_inverse=True, return_counts=True)
    right_keys, right_class, right_counts = np.unique(right, return_inverse=True, return_counts=True)
    left_good = _counterpart(left_keys, left_counts, right_keys, right_counts)
    right_good = _counterpart(right_keys, right_counts, left_keys, left_counts)
    return left_good[left_class.reshape(-1)], right_good[right_class.reshape(-1)]


def _counterpart(keys: Words, counts: Ints, other_keys: Words, other_counts: Ints) -> Flags:
    if not len(keys) or not len(other_keys):
        return np.zeros(len(keys), bool)
    at = np.minimum(np.searchsorted(other_keys, keys), len(other_keys) - 1)
    good: Flags = (other_keys[at] == keys) & (other_counts[at] == counts)
    return good
