import pytest

from opguard_core.align.ranks import pair_ranks
from opguard_core.errors import ConfigError


def test_equal_numbers_pair():
    found = pair_ranks([0, 1, 2], [1, 2, 3])
    assert found.pairs == ((1, 1), (2, 2))
    assert (found.reference_only, found.suspect_only) == ((0,), (3,))


def test_an_explicit_map_pairs_what_it_names():
    found = pair_ranks([0, 1], [0, 1], {0: 1})
    assert found.pairs == ((0, 1),)
    assert (found.reference_only, found.suspect_only) == ((1,), (0,))


@pytest.mark.parametrize(("rank_map", "wrong"), [({5: 0}, "5"), ({0: 7}, "7"), ({0: 1, 1: 1}, "one suspect rank")])
def test_a_map_that_makes_no_sense_is_refused(rank_map, wrong):
    with pytest.raises(ConfigError, match=wrong):
        pair_ranks([0, 1], [0, 1], rank_map)
