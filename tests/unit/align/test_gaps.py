import numpy as np
import pytest

from opguard_core.align import gaps
from opguard_core.align.gaps import Gap, solve, split


def index(*values):
    return np.array(values, np.int64)


def table_score(table):
    """A score function over a table indexed by event numbers."""
    array = np.array(table, np.float32)

    def score(left, right):
        return array[left, right], array[left, right] > 0

    return score


def test_free_events_are_cut_at_anchors():
    found = split(index(0, 1, 4, 5), index(2, 7), index(3, 6), index(4, 8))
    assert [(gap.left.tolist(), gap.right.tolist()) for gap in found] == [([0, 1], [2]), ([4, 5], [7])]


def test_what_one_side_lacks_at_its_end_are_the_last_events():
    """Three reads look alike; a side that ended early has the first one only, whether or not its end is told."""
    table = np.ones((6, 6))
    (gap,) = split(index(1, 2, 3), index(1), index(0), index(0))
    assert gap.open_end
    left, right, _ = solve([gap], table_score(table))
    assert (left.tolist(), right.tolist()) == ([1], [1])
    (closed,) = split(index(1, 2, 3), index(1), index(0, 5), index(0, 5))
    left, right, _ = solve([closed], table_score(table))
    assert (left.tolist(), right.tolist()) == ([3], [1]), "an anchor behind the gap is the nearer one"


def test_a_gap_that_one_side_lacks_is_left_out():
    assert split(index(0), index(5), index(3), index(4)) == []


def test_the_best_monotone_pairs_are_found():
    table = [[0, 2, 0], [3, 0, 0], [0, 0, 2]]
    left, right, banded = solve([Gap(index(0, 1, 2), index(0, 1, 2))], table_score(table))
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == [(1, 0), (2, 2)]
    assert banded == 0


def test_cells_that_are_not_admissible_never_pair():
    left, right, _ = solve([Gap(index(0), index(0))], table_score([[0]]))
    assert len(left) == len(right) == 0


def test_large_tables_and_small_ones_agree(monkeypatch):
    rng = np.random.default_rng(3)
    table = rng.integers(0, 5, (12, 14)) * 0.25
    gap = Gap(np.arange(12), np.arange(14))
    whole = solve([gap], table_score(table))
    monkeypatch.setattr(gaps, "_SMALL_CELLS", 1000)
    small = solve([gap], table_score(table))
    monkeypatch.setattr(gaps, "CHUNK_CELLS", 20)
    rows = solve([gap], table_score(table))
    for other in (small, rows):
        assert [part.tolist() for part in other[:2]] == [part.tolist() for part in whole[:2]]


def test_several_gaps_are_scored_in_batches(monkeypatch):
    monkeypatch.setattr(gaps, "CHUNK_CELLS", 4)
    table = np.eye(6) * 2
    parts = [Gap(index(0, 1), index(0, 1)), Gap(index(2, 3), index(2, 3)), Gap(index(4), index(4, 5))]
    left, right, _ = solve(parts, table_score(table))
    assert left.tolist() == right.tolist() == [0, 1, 2, 3, 4]


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(gaps, "CHUNK_CELLS", 16)
    monkeypatch.setattr(gaps, "BAND_CELLS", 64)
    monkeypatch.setattr(gaps, "BAND_WIDTH", 6)


def test_a_band_finds_what_lies_near_the_diagonal_and_says_so(narrow):
    size = 40
    table = np.zeros((size, size))
    table[np.arange(size), np.arange(size)] = 1
    left, right, banded = solve([Gap(np.arange(size), np.arange(size))], table_score(table))
    assert left.tolist() == right.tolist() == list(range(size))
    assert banded == 1


def test_a_band_leaves_open_what_lies_far_from_the_diagonal(narrow):
    size = 40
    table = np.zeros((size, size))
    table[0, size - 1] = 100  # far off: a gap, not a pair
    table[5, 5] = 1
    left, right, _ = solve([Gap(np.arange(size), np.arange(size))], table_score(table))
    assert list(zip(left.tolist(), right.tolist(), strict=True)) == [(5, 5)]


def test_a_band_over_unequal_sides(narrow):
    table = np.zeros((30, 90))
    table[np.arange(30), np.arange(30) * 3] = 1
    left, right, banded = solve([Gap(np.arange(30), np.arange(90))], table_score(table))
    assert left.tolist() == list(range(30))
    assert right.tolist() == list(range(0, 90, 3))
    assert banded == 1
