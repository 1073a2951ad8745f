"""A run resumed in a process of its own: what it does before it knows its step belongs to no step of the other side."""

import pytest

from opguard_core.certify.compare import compare
from tests.support.script import Script

FIRST = 2  # step at which the resumed run goes on


def training(steps, *, restored=None, factor=1, logs=False):
    """Updates of a weight whose content follows from the one before; ``restored`` sets it to what that step begins with."""
    s = Script()
    weight = s.op("aten.normal_.default", [s.given((8, 8), 1)], (8, 8), 50 if restored is None else 51, at="build()", phase="data")
    s.marker("opguard.optimizer.init", at="AdamW(...)", line=2)
    if restored is not None:
        stored = s.given((8, 8), restored)
        weight = s.op(
            "aten.copy_.default", [weight, stored], (8, 8), restored, into=weight, at="load_state_dict(saved)", line=3, phase="state"
        )
        s.window = FIRST
        if logs:
            s.read(
                s.op("aten.random_.default", [], (), 600, at="iter(loader)", line=4, phase="data"), at="print(loss.mean().item())", line=9
            )
    for step in range(FIRST if restored is not None else 0, steps):
        x = s.given((4, 8), 100 + step)
        h = s.op("aten.mm.default", [x, weight], (4, 8), at="x @ w", line=5)
        scale = factor if step == FIRST + 1 else 1
        loss = s.op("aten.mul.Tensor", [h], (4, 8), args=f"other={scale}", at="h * scale", line=6)
        g = s.op("aten.mm.default", [x, loss], (8, 8), at="loss.backward()", line=7, phase="backward")
        right = weight.held.word == (59 + step if step else 50) and scale == 1
        weight = s.op(
            "aten.add_.Tensor", [weight, g], (8, 8), 60 + step + 30 * (not right), into=weight, at="opt.step()", line=8, phase="optimizer"
        )
        s.state(param__w=weight)
        s.update()
        if logs:
            mean = s.op("aten.mean.default", [loss], (), 500 + step, at="loss.mean()", line=9, phase="data")
            s.read(mean, at="print(loss.mean().item())", line=9)
    s.marker("opguard.run.end")
    return s.close()


def both(*sides):
    yield compare(*sides)
    yield compare(*sides[::-1])


def test_a_resumed_run_is_compared_over_the_steps_that_both_ran():
    for verdict in both(training(4), training(4, restored=61)):
        assert (verdict.verdict, verdict.reasons) == ("identical", [])
        assert verdict.compared["steps"][0] == FIRST
        assert sorted(map(len, verdict.compared["steps_only_in"].values())) == [0, FIRST]


def test_a_resumed_run_that_ends_early_is_not_identical():
    for verdict in both(training(5), training(4, restored=61)):
        assert (verdict.verdict, [reason.slug for reason in verdict.reasons]) == ("inconclusive", ["unresolved-difference"])


def test_what_the_resumed_run_reads_as_it_begins_is_not_the_log_of_the_step_before():
    for verdict in both(training(4, logs=True), training(4, restored=61, logs=True)):
        assert (verdict.verdict, verdict.reasons) == ("identical", [])
        assert len(verdict.isolated) == 1


def test_a_difference_after_the_resumption_is_found_at_its_step():
    for verdict in both(training(4), training(4, restored=61, factor=2)):
        assert (verdict.verdict, verdict.pivot.step, verdict.pivot.suspect.text) == ("diverged", FIRST + 1, "h * scale")


def test_a_checkpoint_of_another_step_is_found_where_it_is_loaded():
    for verdict in both(training(4), training(4, restored=60)):
        places = verdict.pivot.reference, verdict.pivot.suspect
        assert (verdict.verdict, verdict.pivot.origin) == ("diverged", "structure")
        assert [place.text for place in places if place is not None] == ["load_state_dict(saved)"]


@pytest.mark.parametrize("restored", [61, 60])
def test_two_resumed_runs_are_compared_as_well(restored):
    for verdict in both(training(4, restored=61), training(4, restored=restored)):
        assert (verdict.verdict, verdict.reasons == []) == ("identical" if restored == 61 else "diverged", True)
