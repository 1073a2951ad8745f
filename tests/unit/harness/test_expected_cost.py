"""The cost of a run is said before it where a plan or the other side knows it, and from its own first steps where nobody does."""

import dataclasses

import pytest

from opguard_core.launch import pace as launch_pace
from opguard_core.plan.document import Plan
from opguard_core.plan.expected import Cost, Pace, duration, planned
from opguard_core.trace.growth import paced
from opguard_harness.compare import step_watch
from opguard_harness.compare.cost import PaceWatch, expected
from opguard_harness.compare.request import CaptureRequest
from opguard_harness.compare.step_watch import StepWatch
from opguard_harness.report.progress import Silent
from tests.support.script import Script

SIDE = {"step_bytes": 1 << 20, "start_bytes": 1 << 21, "ratio": 1.5, "observed_step_s": 0.25}
PLAN = Plan("full", None, False, (), {"cost": {"planned_steps": 200, "reference": SIDE, "suspect": {**SIDE, "observed_step_s": 0.5}}})
BASIS = "as the other side was"


class Said(Silent):
    def __init__(self):
        super().__init__()
        self.said = []

    def say(self, text):
        self.said.append(text)


def trace(folder, *, steps, ms_a_step, mode="full"):
    """A finished run whose steps end at even distances."""
    script = Script(folder, mode=mode)
    for _ in range(steps):
        script.op("aten.mm.default", [script.given((4, 4), 1)])
        ended_ns = (script.window + 1) * ms_a_step * 1_000_000
        script.event("opguard.state", [], kind="state", phase="state", args="why=update", t_host_ns=ended_ns)
        script.window += 1
    script.close()
    return folder


def test_a_plan_says_it_for_the_side_and_for_a_run_that_may_be_either():
    capture = CaptureRequest(plan=PLAN)
    told = str(expected("reference", capture, 200, None))
    assert told == (
        "expected cost (measured by the plan's preflight): mode full, about 1.50 times a bare step, 250 ms an observed step, "
        "about 50 s for 200 steps, 202.0 MiB of trace"
    )
    assert "about 100 s for 200 steps" in str(expected("run", capture, 200, None))
    assert "1.0 MiB of trace a step" not in str(planned(PLAN, 200))


@pytest.mark.parametrize("cost", [None, 3, {}, {"reference": {"ratio": "x", "step_bytes": None, "observed_step_s": float("nan")}}])
def test_a_plan_that_does_not_say_it_is_no_news(cost):
    assert planned(Plan("full", None, False, (), {"cost": cost}), 3) is None


def test_an_earlier_run_says_it_if_the_mode_is_the_same_and_the_run_is_long(tmp_path):
    folder = trace(tmp_path / "slow", steps=4, ms_a_step=8_000)
    found = paced(folder / "rank-00000")
    assert found.step_s == pytest.approx(8.0, rel=1e-3)
    assert found.step_bytes > 0
    told = str(expected("suspect", CaptureRequest(mode="full"), 4, folder))
    assert told.startswith(f"expected cost ({BASIS}): mode full, 8 s an observed step, about 32 s for 4 steps, ")
    assert expected("suspect", CaptureRequest(mode="full"), 2, folder) is None
    assert expected("suspect", CaptureRequest(mode="verify"), 4, folder) is None
    assert paced(tmp_path) is None


def test_what_is_unknown_is_left_out():
    assert str(Cost("full", "b", step_bytes=1 << 20)) == "expected cost (b): mode full, 1.0 MiB of trace a step"
    assert [duration(seconds) for seconds in (None, 0.0123, 59.0, 600.0, 9000.0)] == [
        "an unknown time",
        "12.3 ms",
        "59 s",
        "10 min",
        "2.5 h",
    ]


def test_where_nothing_is_known_the_first_steps_say_it_once(tmp_path, monkeypatch):
    numbers = iter([0, 2, 12, 22])
    monkeypatch.setattr(step_watch, "slowest", lambda *_: next(numbers))
    told, texts = Said(), []
    watch = StepWatch("run", tmp_path, None, 1000, told, PaceWatch(tmp_path, "full", 1000, known=False))
    for elapsed in (5.0, 20.0, 25.0, 30.0):
        watch.look(elapsed)
        texts.append(watch.text)
    assert told.said == ["run: cost measured on 12 steps: mode full, 500 ms an observed step, about 8 min until the last of 1000"]
    assert texts == ["", "2 of 1000 steps", "12 of 1000 steps, 8 min left", "22 of 1000 steps, 8 min left"]


def test_a_short_run_or_one_whose_cost_was_said_is_left_in_peace(tmp_path, monkeypatch):
    for planned_steps, known in ((20, False), (1000, True)):
        numbers = iter([2, 12])
        monkeypatch.setattr(step_watch, "slowest", lambda *_, left=numbers: next(left))
        told = Said()
        watch = StepWatch("run", tmp_path, None, planned_steps, told, PaceWatch(tmp_path, "full", planned_steps, known=known))
        for elapsed in (20.0, 25.0):
            watch.look(elapsed)
        assert told.said == []


def test_a_slow_step_is_said_though_nobody_knows_how_many_there_will_be():
    pace = Pace(None)
    for elapsed, done in ((0.0, 0), (10.0, 1), (14.0, 3)):
        pace.seen(elapsed, done)
    assert (pace.step_s, pace.left_s, pace.is_long()) == (2.0, None, True)


def test_the_launcher_looks_only_where_somebody_reads_along(tmp_path, monkeypatch):
    monkeypatch.setattr(launch_pace.sys, "stderr", dataclasses.make_dataclass("Stream", ["isatty"])(lambda: False))
    assert launch_pace.said_at_terminal(tmp_path, "full", None, print, None) is None
    monkeypatch.setattr(launch_pace.sys, "stderr", dataclasses.make_dataclass("Stream", ["isatty"])(lambda: True))
    said, clock, numbers = [], iter([0.0, 10.0, 20.0, 30.0]), iter([0, 0, 1, 6, 7])
    monkeypatch.setattr(launch_pace._Watch, "_done", lambda _: next(numbers))
    monkeypatch.setattr(launch_pace.time, "monotonic", lambda: 0.0)
    assert launch_pace.said_at_terminal(tmp_path, "full", (0, 100), said.append, lambda: [7])() == [7]
    looking = launch_pace._Watch(tmp_path, "full", (0, 100), said.append)
    for now in clock:
        looking.look(now)
    assert said == ["cost measured on 6 steps: mode full, 2 s an observed step, about 3 min until the last of 100"]
