"""Sets of words as sorted columns.

Source: our measurement with numpy 2.4: `np.unique` of a few thousand 64-bit words goes through a hash table and takes four
times as long as sorting them; `np.isin` sorts both sides although one of them is sorted already.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def sorted_set(column: NDArray[Any]) -> NDArray[Any]:
    """Distinct elements, rising.

    Cost: one sort.
    """
    ordered = np.sort(column)
    return ordered[is_first(ordered)]


def is_first(ordered: NDArray[Any]) -> NDArray[np.bool_]:
    """For a sorted column, whether each element differs from the one before it."""
    first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first


def among(column: NDArray[Any], members: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each element is one of the members.

    Args:
        column: Elements, any order.
        members: Rising, of the same type.

    Cost: one binary search per element.
    """
    if not len(members):
        return np.zeros(len(column), bool)
    at = np.minimum(np.searchsorted(members, column), len(members) - 1)
    found: NDArray[np.bool_] = members[at] == column
    return found
