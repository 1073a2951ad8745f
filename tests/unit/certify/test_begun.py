"""A loss that nobody reads: the first difference is that of the forward pass all the same, if its own backward is the first to count."""

from __future__ import annotations

import pytest

from opguard_core.certify.begun import producers
from opguard_core.certify.compare import compare
from opguard_core.certify.roots import PRODUCER, Node, Root
from tests.support.script import Script, Tensor

BACKWARD = {"at": "loss.backward()", "line": 10, "phase": "backward"}


def train(factor=None, *, last=None, backward=None, reads_loss=False):
    """y = x @ w; y = y ** 2; [y * factor]; mean; [* last]; backward, update; the factors only in step 1, one in step 0."""
    s = Script()
    w = s.given((8, 8), 1, name="param:w")
    for step in range(2):
        x = s.given((4, 8), 10 + step)
        h = s.op("aten.mm.default", [x, w], (4, 8), at="x @ self.w", line=3)
        made = s.seq
        y = s.op("aten.pow.Tensor_Scalar", [h], (4, 8), at="h.square()", line=4)
        y, scaled = _scaled(s, y, factor, step)
        averaged = s.seq
        loss = s.op("aten.mean.default", [y], (), at="y.mean()", line=6)
        loss, weighted = _scaled(s, loss, last, step)
        if reads_loss:
            s.read(loss, line=9)
        g = s.op("aten.ones_like.default", [_shape_only(loss)], (), 999, **BACKWARD)
        g = _back(s, g, last, step, weighted)
        g = s.op(
            "aten.div.Scalar", [g.view((4, 8), 998, 0, 4) if g.held.word == 999 else g], (4, 8), args="n=32", forward=averaged, **BACKWARD
        )
        g = _back(s, g, factor if backward is None else backward, step, scaled)
        g = s.op("aten.mul.Tensor", [g, h], (4, 8), forward=made, **BACKWARD)
        g = s.op("aten.mm.default", [x, g], (8, 8), forward=made - 1, **BACKWARD)
        w = s.op("aten.add_.Tensor", [w, g], (8, 8), into=w, at="opt.step()", line=11, phase="optimizer")
        s.state(param__w=w)
        s.update()
    return s.close()


def _shape_only(loss: Tensor) -> Tensor:
    return Tensor(loss.storage, loss.shape, loss.held, status="metadata")


def _scaled(s, value, factor, step):
    """The value times a factor, and which event that is."""
    if factor is None:
        return value, None
    seq, shape, now = s.seq, value.shape, factor if step else 1.0
    args = f"other={now}"
    return s.op("aten.mul.Tensor", [value], shape, value.held if now == 1.0 else None, args=args, at="y.mul(factor)", line=5), seq


def _back(s, g, factor, step, forward):
    if factor is None or forward is None:
        return g
    now = factor if step else 1.0
    return s.op("aten.mul.Tensor", [g], g.shape, g.held if now == 1.0 else None, args=f"other={now}", forward=forward, **BACKWARD)


def found(reference, suspect):
    verdict = compare(reference, suspect)
    assert verdict.verdict == "diverged"
    pivot = verdict.pivot
    side = pivot.suspect or pivot.reference
    return pivot.step, pivot.phase, pivot.operator, side.text, pivot.origin


FORWARD = (1, "forward", "aten.mul.Tensor", "y.mul(factor)")


@pytest.mark.parametrize("reads_loss", [False, True])
@pytest.mark.parametrize("at", ["factor", "last"])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_factor_that_one_side_alone_applies(at, reads_loss, swapped):
    sides = train(reads_loss=reads_loss), train(**{at: 1.5}, reads_loss=reads_loss)
    assert found(*(sides[::-1] if swapped else sides)) == (*FORWARD, "structure")


@pytest.mark.parametrize("reads_loss", [False, True])
@pytest.mark.parametrize("at", ["factor", "last"])
def test_another_factor(at, reads_loss):
    assert found(train(**{at: 1.5}, reads_loss=reads_loss), train(**{at: 2.5}, reads_loss=reads_loss)) == (*FORWARD, "argument")


@pytest.mark.parametrize("reads_loss", [False, True])
def test_a_fault_of_the_backward_alone_stays_there(reads_loss):
    """The forward of the operator is the same on both sides: nothing begins there."""
    told = found(train(1.5, reads_loss=reads_loss), train(1.5, backward=2.5, reads_loss=reads_loss))
    assert told == (1, "backward", "aten.mul.Tensor", "loss.backward()", "argument")


def averaged(how, factor=1.0, *, fault=0):
    """A mean, by one operator or two, in step 1 by another number; its backward; ``fault``: of another backward."""
    s = Script()
    w = s.given((8, 8), 1, name="param:w")
    for step in range(2):
        mean, slope = (20, 21) if step == 0 or factor == 1.0 else (30, 31)
        x = s.given((4, 8), 10 + step)
        h = s.op("aten.mm.default", [x, w], (4, 8), at="x @ self.w", line=3)
        if how == "mean":
            loss = s.op("aten.mean.default", [h], (), mean, at="h.mean()", line=6)
        else:
            total = s.op("aten.sum.default", [h], (), 40 + step, at="h.sum()", line=7)
            loss = s.op("aten.div.Tensor", [total], (), mean, args=f"other={factor}", at="h.sum() / n", line=7)
        last = s.seq - 1
        ones = s.op("aten.ones_like.default", [_shape_only(loss)], (), 999, **BACKWARD)
        if how == "mean":
            g = s.op("aten.div.Scalar", [ones.view((4, 8), 998, 0, 4)], (4, 8), slope, args="n=32", forward=last, **BACKWARD)
        else:
            g = s.op("aten.div.Tensor", [ones], (), 50 + slope, args=f"other={factor}", forward=last, **BACKWARD).view((4, 8), slope, 0, 4)
        g = s.op("aten.mul.Tensor", [g, h], (4, 8), None if not (fault and step) else fault, **BACKWARD)
        g = s.op("aten.mm.default", [x, g], (8, 8), forward=last - 1, **BACKWARD)
        w = s.op("aten.add_.Tensor", [w, g], (8, 8), into=w, at="opt.step()", line=11, phase="optimizer")
        s.state(param__w=w)
        s.update()
    return s.close()


@pytest.mark.parametrize("swapped", [False, True])
def test_what_each_side_makes_its_own_way(swapped):
    sides = averaged("mean"), averaged("sum", 1.5)
    step, phase, operator, text, origin = found(*(sides[::-1] if swapped else sides))
    assert (step, phase, origin) == (1, "forward", "structure")
    assert (operator, text) == (("aten.mean.default", "h.mean()") if swapped else ("aten.div.Tensor", "h.sum() / n"))


def test_two_ways_that_agree_are_not_where_a_later_fault_begins():
    assert found(averaged("mean"), averaged("sum", fault=77))[:3] == (1, "backward", "aten.mul.Tensor")
    assert compare(averaged("mean"), averaged("sum")).verdict == "identical"


def test_who_wrote_in_an_earlier_window_has_no_event_here():
    near = (PRODUCER, Node(0, 124, None)), (PRODUCER, Node(1, None, 7))
    assert producers(Root(Node(1, 3, 4), "structure", "in.0", near=near)) == Node(1, None, 7)


def _begin():
    """x @ w; (script, w, x, x @ w, the event that comes next)."""
    s = Script()
    w, x = s.given((8, 8), 1, name="param:w"), s.given((4, 8), 10)
    h = s.op("aten.mm.default", [x, w], (4, 8), at="x @ self.w", line=3)
    return s, w, x, h, s.seq


def _seed(s, y):
    """A loss that nobody reads; what its backward starts from."""
    loss = s.op("aten.sum.default", [y], (), at="y.sum()", line=6)
    return s.op("aten.ones_like.default", [_shape_only(loss)], (4, 8), 999, **BACKWARD)


def _end(s, w, x, g, made):
    """The rest of the backward, and the update."""
    g = s.op("aten.mm.default", [x, g], (8, 8), forward=made - 1, **BACKWARD)
    w = s.op("aten.add_.Tensor", [w, g], (8, 8), into=w, at="opt.step()", line=11, phase="optimizer")
    s.state(param__w=w)
    s.update()
    return s.close()


def two_results(scratch, slope=0):
    """An operator whose second result is a workspace, and its backward."""
    s, w, x, h, made = _begin()
    y = s.op("mine.act.default", [h], (4, 8), 60, more=[((4, 8), scratch)], at="act(h)", line=4)
    ones = _seed(s, y)
    g = s.op("mine.act_backward.default", [ones, h], (4, 8), 70 + slope, forward=made, **BACKWARD)
    return _end(s, w, x, g, made)


def test_a_workspace_that_differs_is_not_where_a_fault_of_the_backward_begins():
    assert found(two_results(80), two_results(81, slope=1))[:3] == (0, "backward", "mine.act_backward.default")


def undone(factor, slope=0):
    """A factor that the next operator takes out again, and another backward of the first."""
    s, w, x, h, made = _begin()
    up = s.op("aten.mul.Tensor", [h], (4, 8), 60 + factor, args=f"other={factor}", at="h * UP", line=4)
    y = s.op("aten.div.Tensor", [up], (4, 8), 50, args=f"other={factor}", at="h / UP", line=5)
    ones = _seed(s, y)
    g = s.op("aten.mul.Tensor", [ones], (4, 8), 70 + slope, args=f"other={slope}", forward=made, **{**BACKWARD, "at": "g * SLOPE"})
    return _end(s, w, x, g, made)


def test_a_forward_difference_that_ends_in_the_forward_is_not_where_a_fault_of_the_backward_begins():
    assert found(undone(2), undone(4, slope=1))[:4] == (0, "backward", "aten.mul.Tensor", "g * SLOPE")
