"""The state at the end of a step: what only it can show, and what is missing there."""

from __future__ import annotations

import pytest

from opguard_core.certify.compare import compare
from tests.support.script import Script
from tests.unit.certify.conftest import slugs
from tests.unit.certify.test_origins import T


def test_an_update_that_is_never_read_again_is_not_identical(both):
    """The last update of a parameter is missing: only the state boundary can show it."""

    def missing(s: Script, place: str, t: T) -> None:
        if place == "after update" and s.window == 1:
            t["w"] = s.op("aten.mul_.Tensor", [t["w"]], (8, 8), into=t["w"], at="w.mul_(decay)", line=12, phase="optimizer")

    verdict = both(missing, None)
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.origin, verdict.pivot.reference.text, verdict.pivot.suspect) == ("structure", "w.mul_(decay)", None)


def test_a_value_computed_but_not_stored_is_found_where_it_was_computed():
    """Both sides compute the update; one stores it elsewhere and nothing reads it again."""

    def without_update(script, lose):
        w = script.given((8, 8), 2, name="param:w")
        x = script.given((4, 8), 3)
        g = script.op("aten.mm.default", [x, w], (8, 8), at="loss.backward()", line=7, phase="backward")
        target = script.op("aten.clone.default", [w], (8, 8), w.held, at="w.clone()", line=6) if lose else w
        script.op("aten.add_.Tensor", [target, g], (8, 8), into=target, at="opt.step()", line=8, phase="optimizer")
        new = script._derived("aten.add_.Tensor", {}, [w, g])
        script.state(param__w=w if lose else w.holding(new))
        script.update()
        return script.close()

    verdict = compare(without_update(Script(), False), without_update(Script(), True))
    assert verdict.verdict == "diverged"
    assert verdict.pivot.suspect.text == "opt.step()"
    assert verdict.pivot.origin == "structure"


def test_a_state_difference_that_the_next_step_reads_is_found_at_the_reader(both):
    def counter(stored):
        def twist(s: Script, place: str, t: T) -> None:
            if place == "batch" and s.window == 0:
                twist.count = s.op("aten.zeros.default", [], (), 0, at="zeros(())", name="optim:w.step")
            if place == "after update":
                count = twist.count
                if stored:
                    twist.count = s.op("aten.add_.Tensor", [count], (), into=count, at="step.add_(1)", line=13, phase="optimizer")
                else:
                    s.op("aten.add.Tensor", [count], (), at="step + 1", line=13, phase="optimizer")
                s.state(param__w=t["w"], optim__step=twist.count)

        return twist

    verdict = both(counter(True), counter(False), steps=(3, 3))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.step, verdict.pivot.suspect.text, verdict.pivot.origin) == (1, "step + 1", "structure")


def test_a_step_without_a_state_boundary_is_not_identical():
    def quiet(script):
        x = script.given((4, 8), 3)
        for step in range(3):
            x = script.op("aten.sin.default", [x], (4, 8), at="f(x)")
            if step:
                script.state(param__w=x)
            script.update()
        script.read(x)
        return script.close()

    verdict = compare(quiet(Script()), quiet(Script()))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["state-missing", "state-missing"])
    assert "step 0" in verdict.reasons[0].text


def test_parameters_that_only_one_side_has():
    def named(*names):
        def build(script):
            x = script.given((4, 8), 3)
            for _ in range(2):
                x = script.op("aten.sin.default", [x], (4, 8), at="f(x)")
                script.state(**{f"param__{name}": script.given((3, at + 1), 50 + at) for at, name in enumerate(names)})
                script.update()
            script.read(x)
            return script.close()

        return build(Script())

    verdict = compare(named("a"), named("a", "b"))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["state-unmatched"])
    assert "only in the suspect param:b" in verdict.reasons[0].text


def _two_updates(script: Script, late: bool, last_is_read: bool = True):
    """Two updates of one weight; with ``late`` each is done after the step has ended, by code that is not the optimizer's."""
    w = script.given((8, 8), 2, name="param:w")
    for window in range(2):
        x = script.given((4, 8), 3 + window)
        y = script.op("aten.mm.default", [x, w], (4, 8), at="model(x)", line=6, phase="forward")
        g = script.op("aten.mm.default", [x, y], (8, 8), at="loss.backward()", line=7, phase="backward")
        new = script._derived("aten.add_.Tensor", {}, [w, g])
        if late:
            script.state(param__w=w)
            script.update()
        operator, at = ("aten.copy_.default", "w.copy_(received)") if late else ("aten.add_.Tensor", "opt.step()")
        w = script.op(operator, [w, g], (8, 8), new, into=w, at=at, line=8)
        if not late:
            script.state(param__w=w)
            script.update()
    script.op("aten.sum.default", [w if last_is_read else x], (), at="print(sum)", line=9)
    return script.close()


def test_state_that_is_brought_in_line_before_anything_reads_it_is_no_difference():
    verdict = compare(_two_updates(Script(), False), _two_updates(Script(), True))
    assert verdict.verdict == "identical", verdict


def test_state_that_is_written_after_the_last_step_and_not_read_is_open_and_names_no_place():
    verdict = compare(_two_updates(Script(), False, last_is_read=False), _two_updates(Script(), True, last_is_read=False))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["unresolved-difference"])


def _scaled_at_the_end(script: Script, scaled: bool, *, inside: bool, whole: bool):
    """The last update, or what follows it, changes a part of a weight on one side; only the other part is read then, or all of it."""
    w = script.given((8, 8), 2, name="param:w")
    for window in range(2):
        x = script.given((4, 8), 3 + window)
        g = script.op("aten.mm.default", [x, w], (8, 8), at="loss.backward()", line=7, phase="backward")
        w = script.op("aten.add_.Tensor", [w, g], (8, 8), into=w, at="opt.step()", line=8, phase="optimizer")
        last, phase = bool(window), "optimizer" if inside else "forward"
        if last and scaled and inside:
            w = script.op("aten.mul_.Tensor", [w], (8, 8), 90, into=w, at="w.mul_(half)", line=12, phase=phase)
        script.state(param__w=w)
        script.update()
        if last and scaled and not inside:
            w = script.op("aten.mul_.Tensor", [w], (8, 8), 90, into=w, at="w.mul_(half)", line=12, phase=phase)
    part = w if whole else w.view((1, 8), 55, 0, 32)
    script.read(script.op("aten.sum.default", [part], (), 66 if not whole else None, at="print(w[0].sum())", line=13))
    return script.close()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_part_that_is_read_alike_says_nothing_of_the_rest(inside, whole):
    reference = _scaled_at_the_end(Script(), False, inside=inside, whole=whole)
    verdict = compare(reference, _scaled_at_the_end(Script(), True, inside=inside, whole=whole))
    assert verdict.verdict != "identical"
    if whole or inside:
        assert (verdict.verdict, verdict.pivot.suspect.text) == ("diverged", "w.mul_(half)")
