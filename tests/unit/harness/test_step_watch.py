"""Steps of a running program: the slowest rank counts, the number is said when it changes, looking costs a bounded share."""

import math
from functools import partial
from pathlib import Path

import anyio
import pytest

from opguard_core.plan.document import Plan
from opguard_harness.compare import launching, step_watch
from opguard_harness.compare.interpreter import Interpreter
from opguard_harness.compare.processes import Interrupts
from opguard_harness.compare.request import CaptureRequest
from opguard_harness.compare.sides import ProgramSide
from opguard_harness.compare.step_watch import LOOK_S, StepWatch, planned_steps, slowest
from opguard_harness.report.progress import Silent
from tests.support.script import Script


class Told(Silent):
    def __init__(self):
        super().__init__()
        self.said = []

    def steps(self, phase, done, planned):
        self.said.append((phase, done, planned))


class Rank:
    """Stands in for a growing trace."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def look(self):
        return self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]


def trace(folder, *steps):
    """A finished trace with as many steps on each rank."""
    for rank, count in enumerate(steps):
        script = Script(folder, rank=rank, world_size=len(steps))
        for _ in range(count):
            script.op("aten.mm.default", [script.given((4, 4), 1)])
            script.event("opguard.state", [], kind="state", phase="state", args="why=update")
            script.window += 1
        script.close()
    return folder


def test_the_slowest_rank_counts(tmp_path):
    assert slowest(tmp_path, None) is None
    assert slowest(trace(tmp_path / "t", 3, 2), None) == 2


def test_a_number_is_said_when_it_changes(tmp_path, monkeypatch):
    told = Told()
    watch = StepWatch("suspect", tmp_path, None, 20, told)
    numbers = iter([None, 0, 0, 14, 14, 20])
    monkeypatch.setattr(step_watch, "slowest", lambda *_: next(numbers))
    texts = []
    for elapsed in range(6):
        watch.look(float(elapsed))
        texts.append(watch.text)
    assert told.said == [("suspect", 0, 20), ("suspect", 14, 20), ("suspect", 20, 20)]
    assert texts == ["", "", "", "14 of 20 steps", "14 of 20 steps", "20 of 20 steps"]


def test_where_nobody_knows_how_many_the_line_says_how_many_there_were(tmp_path, monkeypatch):
    watch = StepWatch("run", tmp_path, None, None, Told())
    monkeypatch.setattr(step_watch, "slowest", lambda *_: 1)
    watch.look(0.0)
    assert watch.text == "1 step"


def test_looks_keep_a_distance_and_the_last_one_is_made(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr(step_watch, "slowest", lambda *_: looks.append(1) or 1)
    clock = iter([0.0, 0.0, 0.0, 10.0, 0.0, 0.0])  # the second look takes 10 s
    monkeypatch.setattr(step_watch.time, "monotonic", lambda: next(clock))
    watch = StepWatch("run", tmp_path, None, None, Told())
    watch.look(0.0)
    watch.look(LOOK_S / 2)
    assert len(looks) == 1
    watch.look(LOOK_S)
    watch.look(LOOK_S + 10.0 / step_watch.SHARE - 1)
    assert len(looks) == 2
    watch.look(math.inf)
    assert len(looks) == 3


@pytest.mark.parametrize(
    ("capture", "planned"),
    [
        (CaptureRequest(), None),
        (CaptureRequest(steps=(10, 14)), 4),
        (CaptureRequest(end_after=3), 3),
        (CaptureRequest(steps=(2, 4), end_after=5), 2),
        (CaptureRequest(plan=Plan("full", None, False, (), {"cost": {"planned_steps": 70}})), 70),
        (CaptureRequest(plan=Plan("full", None, False, (), {"cost": {"planned_steps": None}})), None),
        (CaptureRequest(plan=Plan("full", None, False, ())), None),
    ],
)
def test_how_many_steps_are_planned(capture, planned):
    assert planned_steps(capture) == planned


def test_the_other_side_says_most_about_how_many_there_will_be(tmp_path):
    other = trace(tmp_path / "t", 5)
    assert planned_steps(CaptureRequest(), other) == 5
    assert planned_steps(CaptureRequest(steps=(0, 100)), other) == 5
    assert planned_steps(CaptureRequest(steps=(0, 3)), other) == 3
    assert planned_steps(CaptureRequest(steps=(0, 3)), tmp_path / "none") == 3


def test_the_line_of_a_running_side_says_its_steps_and_its_seconds(tmp_path, monkeypatch):
    class Line(Told):
        def tick(self, text):
            self.said.append(text)

    async def run_to_end(spawn, interrupts, tick):
        tick(3.0)
        tick(12.4)
        return 0

    numbers = iter([None, 14, 20])
    monkeypatch.setattr(step_watch, "slowest", lambda *_: next(numbers))
    monkeypatch.setattr(launching, "run_to_end", run_to_end)
    monkeypatch.setattr(launching, "outcome", lambda *facts: facts)
    side = ProgramSide("suspect", tmp_path, ("python", "train.py"), {}, tmp_path)
    line = Line()
    run = partial(
        launching.run_side,
        side,
        Interpreter(Path("/py"), {}),
        CaptureRequest(steps=(0, 20)),
        tmp_path / "out",
        kept=None,
        interrupts=Interrupts(),
        progress=line,
    )
    anyio.run(run)
    assert line.said == [
        ("suspect", 0, 20),
        "suspect: 3 s",
        ("suspect", 14, 20),
        "suspect: 14 of 20 steps, 12 s",
        ("suspect", 20, 20),
    ]
