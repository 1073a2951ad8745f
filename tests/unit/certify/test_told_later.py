"""A loss that is printed after the update is the first difference, not the backward pass that follows from it."""

import pytest

from opguard_core.certify.compare import compare
from tests.support.script import Script


def run(factor, *, told=True, logged=False):
    """Each step multiplies the loss by a factor, in forward and in backward; Python is told of it in the next window."""
    script = Script()
    w = script.given((8, 8), 2, name="param:w")
    for step in range(3):
        number = factor if step == 1 else 1
        h = script.op("aten.mm.default", [script.given((4, 8), 100 + step), w], (4, 8), at="x @ w", line=3)
        if logged:
            script.op("aten.abs.default", [h], (4, 8), 7000 + number + step, at="h.abs()", line=4)
        loss = script.op("aten.mul.Tensor", [h], (4, 8), args=f"other={number}", at="h * factor", line=5)
        g = script.op(
            "aten.mul.Tensor", [script.given((8, 8), 9)], (8, 8), args=f"other={number}", at="loss.backward()", line=6, phase="backward"
        )
        w = script.op("aten.add_.Tensor", [w, g], (8, 8), into=w, at="opt.step()", line=8, phase="optimizer")
        script.state(param__w=w)
        script.update()
        if told:
            script.read(loss, at="print(loss.item())", line=9)
    script.marker("opguard.run.end")
    return script.close()


def pivots(*sides):
    for verdict in (compare(*sides), compare(*reversed(sides))):
        assert (verdict.verdict, verdict.reasons) == ("diverged", [])
        assert verdict.pivot not in verdict.isolated and not [p for p in verdict.isolated if p.suspect == verdict.pivot.suspect]
        yield verdict.pivot


def test_a_loss_told_after_the_update_is_the_pivot():
    for pivot in pivots(run(1), run(2)):
        assert (pivot.suspect.text, pivot.origin, pivot.step) == ("h * factor", "argument", 1)


def test_a_loss_nobody_is_told_of_is_not():
    for pivot in pivots(run(1, told=False), run(2, told=False)):
        assert (pivot.suspect.text, pivot.origin) == ("loss.backward()", "argument")


def test_an_earlier_difference_that_reaches_nothing_stays_harmless():
    for pivot in pivots(run(1, logged=True), run(2, logged=True)):
        assert pivot.suspect.text == "h * factor"


def logged(factor):
    """Micro-batches add up to a loss of which Python is told the mean, in the next window; backward has the factor of its own."""
    script = Script()
    w = script.given((8, 8), 2, name="param:w")
    total = script.op("aten.zeros.default", [], (), 3, at="total = zeros()", line=1)
    for step in range(3):
        number = factor if step == 1 else 1
        for part in range(2):
            h = script.op("aten.mm.default", [script.given((4, 8), 100 + 2 * step + part), w], (4, 8), at="x @ w", line=3)
            loss = script.op(
                "aten.mul.Tensor", [h], (), 40 + 10 * number + 2 * step + part, args=f"other={number}", at="loss_of(h)", line=5
            )
            total = script.op("aten.add_.Tensor", [total, loss], (), into=total, at="total += loss", line=6)
            g = script.op(
                "aten.mul.Tensor", [script.given((8, 8), 9)], (8, 8), args=f"other={number}", at="loss.backward()", line=7, phase="backward"
            )
        w = script.op("aten.add_.Tensor", [w, g], (8, 8), into=w, at="opt.step()", line=8, phase="optimizer")
        script.state(param__w=w)
        script.update()
        mean = script.op("aten.mean.default", [total], (), at="total.mean()", line=9, phase="data")
        script.read(mean, at="print(total.mean().item())", line=9)
    script.marker("opguard.run.end")
    return script.close()


def test_a_loss_told_through_a_mean_over_micro_batches_is_the_pivot():
    for pivot in pivots(logged(1), logged(2)):
        assert (pivot.suspect.text, pivot.origin, pivot.step) == ("loss_of(h)", "argument", 1)


def chosen(which, *, start="loss", scaled=False):
    """The loss is one of two numbers, in step 1 on one side the other. It is printed after the update."""
    script = Script()
    w = script.given((8, 8), 2, name="param:w")
    for step in range(3):
        name = which if step == 1 else "max"
        h = script.op("aten.mm.default", [script.given((4, 8), 100 + step), w], (4, 8), at="x @ w", line=3)
        parts = {part: script.op(f"aten.a{part}.default", [h], (), at=f"h.{part}()", line=4) for part in ("max", "min")}
        loss = script.op("aten.exp.default", [script.op("aten.neg.default", [parts[name]], (), at="-part", line=5)], (), at="exp", line=6)
        value = script.op("aten.mul.Tensor", [loss], (), at="loss * scale", line=7) if scaled else loss
        other = script.op("aten.mean.default", [h], (), at="h.mean()", line=8)
        script.op("aten.ones_like.default", [value if start == "loss" else other], (), 1, at="backward()", line=9, phase="backward")
        g = script.op("aten.mul.Tensor", [script.given((8, 8), 9)], (8, 8), args=f"other={name}", at="backward()", line=9, phase="backward")
        w = script.op("aten.add_.Tensor", [w, g], (8, 8), into=w, at="opt.step()", line=10, phase="optimizer")
        script.state(param__w=w)
        script.update()
        script.read(loss, at="print(loss.item())", line=11)
    script.marker("opguard.run.end")
    return script.close()


@pytest.mark.parametrize("scaled", [False, True])
def test_the_loss_is_one_quantity_also_where_its_operators_are_paired_by_their_place(scaled):
    """Another number taken for the loss is the first difference, not the backward pass that follows."""
    for pivot in pivots(chosen("max", scaled=scaled), chosen("min", scaled=scaled)):
        assert (pivot.suspect.text, pivot.origin, pivot.step) == ("-part", "structure", 1)


def test_another_number_in_the_log_than_the_loss_is_not_the_pivot():
    for pivot in pivots(chosen("max", start="other"), chosen("min", start="other")):
        assert (pivot.suspect.text, pivot.origin) == ("backward()", "argument")
