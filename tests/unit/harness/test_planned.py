"""What a plan fixes of a run, whether there is room for it, and how a side recorded without it is judged."""

from pathlib import Path

import pytest

from opguard_core.errors import ConfigError, ConflictingOptions, PlanError
from opguard_core.ids import SIDES
from opguard_core.plan.document import Plan
from opguard_harness.compare import planned
from opguard_harness.compare.launching import SideRun
from opguard_harness.compare.planned import add_plan, capture_under, heavier, needed_bytes, require_room
from opguard_harness.compare.request import CaptureRequest, CompareRequest, SideRequest, named_sides
from opguard_harness.config import MIN_FREE_BYTES
from opguard_harness.errors import SpaceShort, UsageError
from opguard_harness.report.progress import Silent
from opguard_harness.workspace.preflight.request import PreflightRequest
from tests.support.script import Script
from tests.unit.preflight.conftest import training

NOTHING = {"python": None, "timeout_s": None}
COST = {"planned_steps": 10, "reference": {"start_bytes": 5, "step_bytes": 100}, "suspect": {"start_bytes": 7, "step_bytes": 200}}


@pytest.fixture
def path(tmp_path):
    Plan("verify", (2, 5), True, ()).save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_a_plan_fixes_mode_steps_and_knobs(path):
    capture = capture_under(path, mode=None, steps=None, deterministic=False, **NOTHING)
    assert (capture.mode, capture.steps, capture.deterministic, capture.plan.steps) == ("verify", (2, 5), True, (2, 5))


def test_saying_the_same_as_the_plan_is_no_conflict(path):
    assert capture_under(path, mode="verify", steps=(2, 5), deterministic=True, **NOTHING).plan is not None


@pytest.mark.parametrize("asked", [{"mode": "full"}, {"mode": "sentinel"}, {"steps": (2, 6)}])
def test_saying_something_else_is_a_conflict(path, asked):
    with pytest.raises(ConflictingOptions, match=r"fixes (mode verify|steps 2:5), not"):
        capture_under(path, **{"mode": None, "steps": None, "deterministic": False, **NOTHING, **asked})


def test_knobs_that_the_plan_does_not_have_are_a_conflict(tmp_path):
    Plan("full", None, False, ()).save(tmp_path / "p")
    with pytest.raises(ConflictingOptions, match="deterministic false, not true"):
        capture_under(tmp_path / "p", mode=None, steps=None, deterministic=True, **NOTHING)


def test_without_a_plan_the_mode_is_full_unless_asked():
    assert capture_under(None, mode=None, steps=None, deterministic=False, **NOTHING) == CaptureRequest()
    assert capture_under(None, mode="trusted", steps=(0, 1), deterministic=False, **NOTHING).mode == "trusted"


def test_a_plan_that_is_not_there_is_told(tmp_path):
    with pytest.raises(PlanError, match=r"none\.json"):
        capture_under(tmp_path / "none.json", mode=None, steps=None, deterministic=False, **NOTHING)


def test_room_is_counted_for_the_sides_that_run():
    plan = Plan("full", None, False, (), {"cost": COST})
    assert needed_bytes(plan, SIDES) == 5 + 1000 + 7 + 2000
    assert needed_bytes(plan, ["suspect"]) == 2007
    assert needed_bytes(plan, []) == 0
    assert heavier(plan) == "suspect"
    assert heavier(None) == "reference"


@pytest.mark.parametrize("cost", [None, 3, {**COST, "planned_steps": None}, {"planned_steps": 3, "reference": 1}])
def test_a_plan_that_does_not_say_what_it_costs_refuses_nothing(cost, tmp_path):
    plan = Plan("full", None, False, (), {"cost": cost})
    assert needed_bytes(plan, SIDES) is None
    require_room(plan, tmp_path / "out", sides=SIDES)


def test_a_run_that_would_not_fit_is_refused_before_it_starts(tmp_path, monkeypatch):
    plan = Plan("full", None, False, (), {"cost": COST})
    for free, fits in ((MIN_FREE_BYTES + 3012, True), (MIN_FREE_BYTES + 3011, False)):
        monkeypatch.setattr(planned.shutil, "disk_usage", lambda folder, free=free: type("Usage", (), {"free": free}))
        if fits:
            require_room(plan, tmp_path / "not" / "there" / "yet", sides=SIDES)
        else:
            with pytest.raises(SpaceShort, match=r"\[space-short\]"):
                require_room(plan, tmp_path / "not" / "there" / "yet", sides=SIDES)


@pytest.fixture
def runs(tmp_path):
    def build(*hashes):
        made = []
        for side, found in zip(SIDES, hashes, strict=True):
            training(Script(tmp_path / side)).close(extra={"plan_hash": found})
            made.append(SideRun(side, tmp_path / side, 0, 1.0))
        return made

    return build


def test_an_answer_says_what_became_of_the_sites_on_both_sides(runs):
    plan = Plan("verify", None, False, ())
    answer = {"verdict": "identical", "reasons": []}
    add_plan(answer, plan, runs(plan.hash, plan.hash), Silent())
    assert answer["verdict"] == "identical"
    assert (answer["plan"]["hash"], answer["plan"]["sites"]) == (plan.hash, 0)
    assert answer["plan"]["reference"]["extra"] == answer["plan"]["suspect"]["extra"] > 0


def test_two_sides_that_agree_on_another_plan_give_no_verdict_under_this_one(runs):
    answer = {"verdict": "diverged", "pivot": {"step": 3}, "reasons": []}
    add_plan(answer, Plan("verify", None, False, ()), runs("f" * 64, "f" * 64), Silent())
    assert (answer["verdict"], answer["pivot"]) == ("inconclusive", None)
    assert answer["reasons"][0]["slug"] == "plan-mismatch"
    assert "reference" in answer["reasons"][0]["text"]


def test_without_a_plan_an_answer_stays_as_it_is():
    answer = {"verdict": "identical", "reasons": []}
    add_plan(answer, None, [], Silent())
    assert answer == {"verdict": "identical", "reasons": []}


def test_both_sides_are_named_by_the_options_of_a_command():
    sides = named_sides("a", "b", words=("--x 1", ""), env=(["A=1"], []))
    assert sides == (SideRequest(Path("a"), ("--x", "1"), {"A": "1"}), SideRequest(Path("b")))
    assert named_sides("", "b", reference_commit="HEAD~1")[0] == SideRequest(Path("b"), commit="HEAD~1")
    with pytest.raises(UsageError, match="--reference"):
        named_sides("", "b")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"first": 1}, "too few"),
        ({"first": 10**20}, "--steps 100000000000000000000 is no number of steps"),
        ({"planned_steps": 0}, "no number of steps"),
        ({"planned_steps": 10**20}, "no number of steps"),
        ({"mode": "sentinel"}, "records no operators"),
    ],
)
def test_a_preflight_that_could_tell_nothing_is_refused(options, why):
    mode = {"mode": options.pop("mode")} if "mode" in options else {}
    both = CompareRequest(SideRequest(Path("a")), SideRequest(Path("b")), capture=CaptureRequest(**mode))
    with pytest.raises(ConfigError, match=why):
        PreflightRequest(both, **options)


def test_a_window_says_how_many_steps_are_recorded():
    sides = SideRequest(Path("a")), SideRequest(Path("b"))
    assert PreflightRequest(CompareRequest(*sides, capture=CaptureRequest(steps=(10, 14))), planned_steps=99).recorded_steps == 4
    assert PreflightRequest(CompareRequest(*sides), planned_steps=99).recorded_steps == 99
    assert PreflightRequest(CompareRequest(*sides)).recorded_steps is None
