"""What an exception at the end of one side, and a value that Python is told of named state, say about the first difference."""

from __future__ import annotations

import pytest

from opguard_core.certify.compare import compare
from tests.support.script import Script


def checked(mask: int, *, ended: str = "exit", told: bool = True, check: bool = True):
    """A mask, work that uses it, and on one side a check of its own that may end the program."""
    s = Script()
    x = s.given((4, 8), 1)
    m = s.op("aten.gt.Scalar", [x], (4, 8), mask, at="make_mask(x)", line=2)
    y = s.op("aten.mul.Tensor", [x, m], (4, 8), at="x * m", line=3)
    if check:
        ok = s.op("aten.all.default", [y], (), 40 + mask, at="isfinite(y).all()", line=4, trivial=True)
        if told:
            s.read(ok, line=4)
    if ended == "exit":
        for step in range(3):
            y = s.op("aten.add.Tensor", [y, x], (4, 8), at="y + x", line=6 + step)
        s.read(s.op("aten.sum.default", [y], (), at="y.sum()", line=10), line=10)
    return s.close(ended=ended)


@pytest.mark.parametrize("mirrored", [False, True])
def test_what_python_was_told_last_made_a_side_raise(mirrored):
    """Only one side checks its values, so no pair of reads shows that the difference counts; its exception does."""
    sides = [checked(7, check=False), checked(8, ended="exception")]
    verdict = compare(*(sides[::-1] if mirrored else sides))
    assert verdict.verdict == "diverged"
    place = verdict.pivot.reference if mirrored else verdict.pivot.suspect
    assert (place.text, verdict.pivot.origin) == ("make_mask(x)", "operator")


def test_an_exception_that_follows_no_read_explains_nothing():
    verdict = compare(checked(7, check=False), checked(8, ended="exception", told=False))
    assert verdict.verdict == "inconclusive"


def test_an_exception_after_an_equal_value_leaves_the_verdict_open():
    verdict = compare(checked(7), checked(7, ended="exception"))
    assert verdict.verdict == "inconclusive"
    assert verdict.pivot is None


def looked_up(index: int, *, raises: bool):
    s = Script()
    table = s.given((8, 8), 1)
    i = s.op("aten.argmax.default", [table], (8,), index, at="pick(table)", line=2, dtype="int64")
    if raises:
        slots = [s._slot(f"in.{at}", "in", tensor) for at, tensor in enumerate((table, i))]
        s.event("aten.embedding.default", slots, at="table[i]", line=3, args="False;raised=IndexError")
        return s.close(ended="exception")
    rows = s.op("aten.embedding.default", [table, i], (8, 8), 30, at="table[i]", line=3, args="False")
    s.read(s.op("aten.sum.default", [rows], (), at="rows.sum()", line=4), line=4)
    return s.close()


def test_an_operator_that_raises_on_one_side_counts():
    verdict = compare(looked_up(7, raises=False), looked_up(8, raises=True))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.suspect.text, verdict.pivot.origin) == ("pick(table)", "operator")


def counted(*, update: bool):
    """A step counter that is counted in place and told to Python."""
    s = Script()
    step = s.op("aten.zeros.default", [], (), 1, at="torch.zeros(())", line=2, trivial=True, name="optim:w.step")
    x = s.op("aten.randn.default", [], (8, 8), 5, at="randn()")
    if update:
        s.op("aten.add_.Tensor", [step], (), 2, into=step, at="step += 1", line=3, phase="optimizer", trivial=True)
    s.read(step.holding(2 if update else 1), line=4)
    s.op("aten.mul.Scalar", [x], (8, 8), at="x * lr", line=5, args="0.1" if update else "0.2")
    return s.close()


@pytest.mark.parametrize("sides", [(True, False), (False, True)])
def test_a_counter_read_by_name_leads_to_the_update_that_one_side_lacks(sides):
    verdict = compare(*(counted(update=update) for update in sides))
    assert verdict.verdict == "diverged"
    lone = verdict.pivot.reference or verdict.pivot.suspect
    assert (lone.text, verdict.pivot.origin) == ("step += 1", "structure")
    assert (verdict.pivot.reference is None) != (verdict.pivot.suspect is None)
