"""Which rank's difference is the first, told by collectives and not by clocks."""

from __future__ import annotations

import pytest

from opguard_core.certify.compare import compare
from tests.support.script import Script


def two_ranks(folder, *, wrong: int):
    """Each rank reduces its own gradient; ``wrong`` is the content of rank 1's, and so of both sums."""
    for rank in (0, 1):
        s = Script(folder, rank=rank, world_size=2)
        x = s.given((8, 8), 10 + rank)
        w = s.given((8, 8), 20, name="param:w")
        g = s.op("aten.mul.Tensor", [x, w], (8, 8), 30 if rank == 0 else wrong, at="x * w", line=2 + rank)
        g = s.op("c10d.allreduce_.default", [g], (8, 8), 100 + wrong, into=g, at="dist.all_reduce(g)", line=5, kind="collective")
        w = s.op("aten.add_.Tensor", [w, g], (8, 8), into=w, at="w.add_(g)", line=6, phase="optimizer")
        s.state(param__w=w)
        s.update()
        run = s.close()
    return run


@pytest.mark.parametrize("swapped", [False, True])
def test_the_rank_that_brought_the_difference_into_a_collective_is_first(tmp_path, swapped):
    """Rank 0 gets another sum from equal inputs, at a collective that had begun when rank 1 was already wrong."""
    runs = [two_ranks(tmp_path / "a", wrong=31), two_ranks(tmp_path / "b", wrong=32)]
    verdict = compare(*(runs[::-1] if swapped else runs))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.rank, verdict.pivot.suspect.text, verdict.pivot.origin) == (1, "x * w", "operator")
    assert [first.rank for first in verdict.rank_firsts] == [1, 0]


def buffers(folder, *, broadcast: bool):
    """Rank 1 takes its buffer from rank 0 or goes on with its own; both ranks reduce their gradients."""
    for rank in (0, 1):
        s = Script(folder, rank=rank, world_size=2)
        w = s.given((8, 8), 20, name="param:w")
        own = s.op("aten.fill_.Scalar", [s.given((8,), 1)], (8,), 5 + rank, at="build()", line=1, phase="data")
        if broadcast:
            s.event("c10d.broadcast_.default", [], kind="collective", at="model(x)", line=2)
            if rank == 1:
                own = s.op("aten.copy_.default", [own, s.given((8,), 5)], (8,), 5, into=own, at="model(x)", line=2)
        h = s.op("aten.mul.Tensor", [s.given((8, 8), 10 + rank), own], (8, 8), at="x * self.scale", line=3)
        total = 100 + (0 if broadcast else 1)
        g = s.op("c10d.allreduce_.default", [h], (8, 8), total, into=h, at="dist.all_reduce(g)", line=5, kind="collective")
        w = s.op("aten.add_.Tensor", [w, g], (8, 8), into=w, at="w.add_(g)", line=6, phase="optimizer")
        s.state(param__w=w)
        s.update()
        run = s.close()
    return run


@pytest.mark.parametrize("swapped", [False, True])
def test_a_missing_collective_does_not_make_another_rank_the_first(tmp_path, swapped):
    """GIVEN a side without a broadcast, so with fewer collectives before the sum, THEN the rank that used it is first all the same."""
    runs = [buffers(tmp_path / "a", broadcast=True), buffers(tmp_path / "b", broadcast=False)]
    verdict = compare(*(runs[::-1] if swapped else runs))
    assert (verdict.verdict, verdict.pivot.rank, verdict.pivot.origin) == ("diverged", 1, "structure")
    assert [first.rank for first in verdict.rank_firsts] == [1, 0]
