"""Claims: alignment equals brute force on small inputs, is one to one, never pairs incompatible events, keeps a monotone
skeleton, is the identity on equal sides, and swapping the sides mirrors it."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opguard_core.align import gaps
from opguard_core.align.aligned import align
from opguard_core.align.content import join
from opguard_core.align.features import Features
from opguard_core.align.gaps import Gap, solve
from opguard_core.align.loading import RankColumns
from opguard_core.align.pairing import ANCHOR, HOW, Pairing
from opguard_core.align.passes import join_content, pair_exact, return_strays
from opguard_core.align.skeleton import longest_rising
from opguard_core.align.vocabulary import Vocabulary
from tests.support.script import Held, Script

settings.register_profile("align", derandomize=True, deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
PROFILE = settings.get_profile("align")

cells = st.integers(0, 4).map(lambda quarters: quarters / 4)
tables = st.integers(1, 7).flatmap(lambda width: st.lists(st.lists(cells, min_size=width, max_size=width), min_size=1, max_size=7))


def best_total(table):
    """Largest sum over monotone pairings, by trying all of them."""

    @cache
    def best(i, j):
        if i == len(table) or j == len(table[0]):
            return 0.0
        taken = table[i][j] + best(i + 1, j + 1) if table[i][j] else 0.0
        return max(best(i + 1, j), best(i, j + 1), taken)

    return best(0, 0)


def pairs_of(table):
    array = np.array(table, np.float32)
    left, right, banded = solve([Gap(np.arange(array.shape[0]), np.arange(array.shape[1]))], lambda i, j: (array[i, j], array[i, j] > 0))
    assert banded == 0
    return list(zip(left.tolist(), right.tolist(), strict=True))


@PROFILE
@given(tables, st.sampled_from([0, 1000]))
def test_gap_pairing_is_as_good_as_brute_force(table, small):
    before, gaps._SMALL_CELLS = gaps._SMALL_CELLS, small
    try:
        pairs = pairs_of(table)
    finally:
        gaps._SMALL_CELLS = before
    assert sum(table[i][j] for i, j in pairs) == best_total(table)
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(pairs))
    assert all(table[i][j] > 0 for i, j in pairs)


@PROFILE
@given(st.lists(st.integers(0, 30), max_size=12, unique=True))
def test_the_skeleton_is_a_longest_rising_subsequence(values):
    kept = [value for value, flag in zip(values, longest_rising(np.array(values, np.int64)), strict=True) if flag]
    lengths = []
    for at, value in enumerate(values):
        lengths.append(1 + max((lengths[before] for before in range(at) if values[before] < value), default=0))
    assert kept == sorted(kept)
    assert len(kept) == max(lengths, default=0)


@PROFILE
@given(st.lists(st.integers(0, 4), max_size=10), st.lists(st.integers(0, 4), max_size=10))
def test_joining_pairs_classes_of_equal_size_in_order(left, right):
    a, b = join(np.array(left, np.uint64), np.array(right, np.uint64), np.zeros(len(left)), np.zeros(len(right)))
    expected = set()
    for value in set(left):
        rows, columns = [i for i, v in enumerate(left) if v == value], [j for j, v in enumerate(right) if v == value]
        if len(rows) == len(columns):
            expected |= set(zip(rows, columns, strict=True))
    assert set(zip(a.tolist(), b.tolist(), strict=True)) == expected


OPERATORS = ["aten.mm.default", "aten.add.Tensor", "aten.add_.Tensor", "aten.relu.default", "aten.full.default"]


@st.composite
def programs(draw):
    """A short made-up side: operators over earlier results, contents from a small pool so that values repeat."""
    count = draw(st.integers(0, 9))
    return [
        {
            "operator": draw(st.sampled_from(OPERATORS)),
            "reads": draw(st.lists(st.integers(0, at), max_size=2)),
            "content": draw(st.integers(0, 5)),
            "shape": draw(st.sampled_from([(4, 8), (8, 4), (32,), ()])),
            "phase": draw(st.sampled_from(["forward", "backward", "recompute"])),
            "site": draw(st.sampled_from(["f(x)", "g(x)", "h(x)"])),
            "lane": draw(st.sampled_from(["main", "main", "main", "Thread:work"])),
        }
        for at in range(count)
    ]  # fmt: skip


def record(program):
    script = Script()
    tensors = [script.given((4, 8), 999)]
    for step in program:
        reads = [tensors[at] for at in step["reads"]]
        made = script.op(
            step["operator"],
            reads,
            step["shape"],
            Held(step["content"], None, step["content"] // 2),
            at=step["site"],
            phase=step["phase"],
            thread=step["lane"],
        )
        tensors.append(made)
    script.marker("opguard.run.end")
    return script.close().ranks[0]


def window_of(program, vocabulary):
    return next(RankColumns(record(program), vocabulary).iter_windows())[1]


def both_windows(left, right):
    vocabulary = Vocabulary()
    return window_of(left, vocabulary), window_of(right, vocabulary)


@PROFILE
@given(programs(), programs())
def test_alignment_is_one_to_one_and_pairs_only_compatible_events(left, right):
    r, s = both_windows(left, right)
    found = align(r, s)
    for i in found.pairs.tolist():
        j = int(found.left[i])
        assert found.right[j] == i
        same_op = r.op[i] == s.op[j]
        shared = {int(value) for value in r.bag[r.outputs(i)]} & {int(value) for value in s.bag[s.outputs(j)]}
        assert same_op or shared, "neither the same work nor the same result"
        assert found.confidence[i] in (1, 2, 3) and HOW[found.how[i]]
    free = np.flatnonzero(found.left < 0)
    assert (found.how[free] == 0).all() and (found.confidence[free] == 0).all()


@PROFILE
@given(programs(), programs())
def test_swapping_the_sides_mirrors_the_alignment(left, right):
    there, back = align(*both_windows(left, right)), align(*both_windows(right, left))
    assert there.left.tolist() == back.right.tolist()
    assert there.right.tolist() == back.left.tolist()
    assert there.how[there.pairs].tolist() == back.how[there.left[there.pairs]].tolist()
    assert there.confidence[there.pairs].tolist() == back.confidence[there.left[there.pairs]].tolist()
    assert sorted(there.outputs.code.tolist()) == sorted(back.outputs.code.tolist())


@PROFILE
@given(programs())
def test_a_side_aligned_with_itself_is_equal_everywhere(program):
    found = align(*both_windows(program, program))
    comparable = np.flatnonzero(found.reference.window.comparable)
    assert found.left[comparable].tolist() == comparable.tolist() or not found.differs.any()
    assert (found.left[comparable] >= 0).all()
    assert not found.differs.any() and not found.reads_differ.any()


@PROFILE
@given(programs(), programs())
def test_the_skeleton_keeps_the_order_on_both_sides_of_each_lane(left, right):
    r, s = both_windows(left, right)
    pairing = Pairing(Features(r), Features(s))
    join_content(pairing)
    return_strays(pairing)
    pair_exact(pairing)
    for lane, (lefts, rights) in pairing._anchors.items():
        assert (np.diff(lefts) > 0).all() and (np.diff(rights) > 0).all()
        assert (r.lane[lefts] == lane).all() and (s.lane[rights] == lane).all()
        assert (pairing.how[lefts] < ANCHOR).all()
