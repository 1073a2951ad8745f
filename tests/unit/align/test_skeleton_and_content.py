import numpy as np

from opguard_core.align.content import join
from opguard_core.align.skeleton import longest_rising


def keys(*values):
    return np.array(values, np.uint64)


def pairs(left, right, left_order=None, right_order=None):
    a, b = join(keys(*left), keys(*right), np.array(left_order or [0] * len(left)), np.array(right_order or [0] * len(right)))
    return sorted(zip(a.tolist(), b.tolist(), strict=True))


def test_unique_keys_pair_whatever_their_order():
    assert pairs([5, 6, 7], [7, 5, 9]) == [(0, 1), (2, 0)]


def test_classes_of_equal_size_pair_in_order():
    assert pairs([5, 5], [5, 8, 5]) == [(0, 0), (1, 2)]


def test_classes_of_unequal_size_stay_open():
    assert pairs([5, 5, 6], [5, 6]) == [(2, 1)]


def test_the_order_inside_a_class_goes_by_phase():
    assert pairs([5, 5], [5, 5], [0, 1], [1, 0]) == [(0, 1), (1, 0)]


def test_nothing_pairs_with_nothing():
    assert pairs([], []) == []
    assert pairs([1], []) == []
    assert pairs([], [1]) == []


def rising(*values):
    return longest_rising(np.array(values)).tolist()


def test_rising_sequences_are_kept_whole():
    assert rising() == []
    assert rising(3) == [True]
    assert rising(1, 2, 3) == [True, True, True]


def test_one_value_out_of_place_is_dropped():
    assert rising(1, 9, 2, 3) == [True, False, True, True]
    assert sum(rising(2, 1)) == 1


def test_the_longest_subsequence_wins_across_several_crossings():
    values = [4, 5, 6, 1, 2, 3, 7, 8, 12, 9, 10, 11]
    kept = np.array(values)[longest_rising(np.array(values))]
    assert len(kept) == 8
    assert (np.diff(kept) > 0).all()
