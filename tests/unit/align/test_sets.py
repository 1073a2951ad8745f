"""Sets as sorted columns agree with what numpy calls the same."""

import numpy as np
import pytest

from opguard_core.align.content import join
from opguard_core.align.sets import among, is_first, sorted_set

COLUMNS = [
    np.array(values, np.uint64) for values in ([], [3], [3, 3, 3], [2**64 - 1, 0, 5, 0], list(range(50)) * 2, [2**63, 2**63 + 1, 2**63])
]


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_a_sorted_set_is_what_unique_gives(column):
    assert sorted_set(column).tolist() == np.unique(column).tolist()
    assert sorted_set(column).dtype == column.dtype


@pytest.mark.parametrize("members", COLUMNS, ids=str)
@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_membership_is_what_isin_gives(column, members):
    assert among(column, sorted_set(members)).tolist() == np.isin(column, members).tolist()


def test_the_first_of_each_run_is_marked():
    assert is_first(np.array([1, 1, 2, 4, 4, 4])).tolist() == [True, False, True, True, False, False]
    assert is_first(np.zeros(0, np.int64)).tolist() == []


def test_a_join_pairs_classes_of_equal_size_only():
    left, right = np.array([7, 5, 7, 9], np.uint64), np.array([9, 7, 7, 5, 5], np.uint64)
    a, b = join(left, right, np.arange(4), np.arange(5))
    assert sorted(zip(a.tolist(), b.tolist(), strict=True)) == [(0, 1), (2, 2), (3, 0)]
    for empty in (left, right):
        assert [len(part) for part in join(empty, left[:0], np.arange(len(empty)), np.arange(0))] == [0, 0]
