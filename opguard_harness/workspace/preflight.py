"""A look before a long run: the first steps of both sides, in private copies that are thrown away.

Each copy is ended once its first steps were recorded and a few more were timed without observation. From the two short
traces: the boundaries in common and what each side has alone, contract differences, what observing costs, and the plan.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from opguard_core import __version__
from opguard_core.errors import ConfigError, Interrupted, NothingCaptured, PlanError, TimedOut
from opguard_core.ids import MODES
from opguard_core.plan.config import MAX_STEPS
from opguard_core.plan.document import PLANNED_MODES, Plan, check_target
from opguard_harness.compare.folders import private_copy, scratch
from opguard_harness.compare.interpreter import Interpreter, find
from opguard_harness.compare.judging import contract_differences
from opguard_harness.compare.launching import SideRun, run_side
from opguard_harness.compare.processes import Interrupts
from opguard_harness.compare.request import CaptureRequest, CompareRequest
from opguard_harness.compare.sides import ProgramSide, Side, TraceSide, resolve, trace_folder
from opguard_harness.config import MIN_FREE_BYTES, runs_dir
from opguard_harness.errors import OutRefused
from opguard_harness.report.progress import Progress

if TYPE_CHECKING:
    from opguard_core.preflight.discover import Alone, Discovery
    from opguard_core.preflight.work import Measured

BARE_STEPS = 3
EXAMPLES = 8
LEAST_STEPS = 2


@dataclass(frozen=True)
class PreflightRequest:
    """What to look at.

    Attributes:
        compare: Both sides; its mode, steps and knobs are those that the long run will have. Nothing is kept.
        first: Steps to run and record on each side.
        planned_steps: Steps that the long run will record on each side; None takes the window's, if there is one.
        plan: File to write the plan to; None makes none.
    """

    compare: CompareRequest
    first: int = 3
    planned_steps: int | None = None
    plan: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what tells nothing."""
        if self.first < LEAST_STEPS:
            raise ConfigError(
                f"--steps {self.first} is too few: the first step has the set-up in it.", hint=f"Look at {LEAST_STEPS} steps or more."
            )
        if self.compare.capture.mode not in PLANNED_MODES:
            raise ConfigError(
                f"--mode {self.compare.capture.mode} records no operators, so there is nothing to plan.",
                hint=f"Use --mode {' or '.join(PLANNED_MODES)}; the cost of sentinel is estimated as well.",
            )
        for option, count in (("--steps", self.first), ("--planned-steps", self.planned_steps)):
            if count is not None and not 1 <= count <= MAX_STEPS:
                raise ConfigError(f"{option} {count} is no number of steps.", hint=f"Give 1 to {MAX_STEPS}, or leave it out.")

    @property
    def recorded_steps(self) -> int | None:
        """Steps that the long run records, None if nobody said."""
        steps = self.compare.capture.steps
        return self.planned_steps if steps is None else steps[1] - steps[0]


def preflight(request: PreflightRequest, progress: Progress) -> dict[str, Any]:
    """Run the first steps of both sides in private copies and say what they share and what a long run would cost.

    Args:
        request: What to look at.
        progress: Where to say what goes on.

    Returns:
        Plain values: ``sides``, ``common``, ``alone``, ``contract``, ``cost``, ``warnings``, ``plan``.

    Raises:
        OpGuardError: A side could not be captured at all, or no plan can be made.
    """
    both = request.compare
    _refuse_place_of_plan(request)
    with scratch("preflight", [both.reference.folder, both.suspect.folder]) as folder:
        sides = [_private(side, folder) for side in resolve(both, folder)]
        interpreter = find(both.capture.python) if any(isinstance(side, ProgramSide) for side in sides) else None
        if interpreter is not None and interpreter.untested():
            progress.say(f"note: {interpreter.untested()}")
        looks = _run_all(sides, interpreter, request, folder, progress)
        progress.say("comparing what both sides do")
        return _report(request, looks)


def _refuse_place_of_plan(request: PreflightRequest) -> None:
    """Before anything runs: a file of ours in a side would change what its source digest says.

    Raises:
        OutRefused: The plan would lie in one.
        PlanError: Something else is there.
    """
    if request.plan is None:
        return
    path = request.plan.expanduser().resolve()
    for side in (request.compare.reference, request.compare.suspect):
        if trace_folder(side.folder) is None and path.is_relative_to(side.folder.resolve()):
            raise OutRefused(f"The plan {path} would lie inside the side {side.folder}.", hint="Name a file elsewhere with --plan.")
    check_target(path)


@dataclass(frozen=True)
class _Look:
    """One side's short run. ``how``: "ended" (by us, as planned), "finished" (by itself), "cut" (out of time), "stored" (a trace)."""

    run: SideRun
    how: str


def _private(side: Side, folder: Path) -> Side:
    """The side in a copy of its own; a checked-out commit is one already."""
    if isinstance(side, TraceSide) or side.folder != side.origin:
        return side
    return replace(side, folder=private_copy(side.folder, folder / side.name))


def _run_all(
    sides: list[Side], interpreter: Interpreter | None, request: PreflightRequest, folder: Path, progress: Progress
) -> dict[str, _Look]:
    capture = replace(request.compare.capture, steps=None, end_after=request.first, bare_steps=BARE_STEPS)
    looks = {}
    with Interrupts() as interrupts:
        for side in sides:
            if isinstance(side, TraceSide):
                looks[side.name] = _Look(SideRun(side.name, side.trace, None, 0.0), "stored")
                continue
            assert interpreter is not None, "a program side has an interpreter"
            looks[side.name] = _first_steps(side, interpreter, capture, folder / f"{side.name}-results", interrupts, progress)
    if interrupts.count:
        raise Interrupted("Interrupted when both programs had run.", hint="Run the command again.")
    return looks


def _first_steps(
    side: ProgramSide, interpreter: Interpreter, capture: CaptureRequest, folder: Path, interrupts: Interrupts, progress: Progress
) -> _Look:
    """Capture one side; one that is still running when its time is up is ended and read as far as it came."""
    from opguard_core.trace.manifest import read_run_manifest

    work = partial(run_side, side, interpreter, capture, folder, kept=None, interrupts=interrupts, progress=progress)
    try:
        run = anyio.run(work)
    except TimedOut:
        trace = trace_folder(folder)
        if trace is None:
            raise NothingCaptured(
                f"The {side.name} side had captured nothing when its {capture.timeout_s:g} s were over.", hint="Give it more time."
            ) from None
        return _Look(SideRun(side.name, trace, None, capture.timeout_s or 0.0), "cut")
    early = "step_times" in read_run_manifest(run.trace).extra
    return _Look(run, "ended" if early else "finished")


def _report(request: PreflightRequest, looks: Mapping[str, _Look]) -> dict[str, Any]:
    from opguard_core.preflight.discover import discover
    from opguard_core.preflight.work import measure
    from opguard_core.trace.reader import Run

    runs = {name: Run.open(look.run.trace) for name, look in looks.items()}
    found = discover(runs["reference"], runs["suspect"])
    measured = {name: measure(run) for name, run in runs.items()}
    contract = contract_differences(looks["reference"].run.trace, looks["suspect"].run.trace)
    cost = _cost(request, measured)
    report: dict[str, Any] = {
        "sides": {name: _side(look, measured[name], runs[name].manifest.mode) for name, look in looks.items()},
        "common": _common(found),
        "alone": {
            "reference": _alone(found.reference_only, found.alone[0]),
            "suspect": _alone(found.suspect_only, found.alone[1]),
        },
        "contract": contract,
        "cost": cost,
        "plan": None,
    }
    report["warnings"] = _warnings(request, looks, report)
    if request.plan is not None:
        report["plan"] = _make_plan(request, found, report)
    return report


def _side(look: _Look, measured: Measured, mode: str) -> dict[str, Any]:
    return {
        "how": look.how,
        "exit": look.run.exit_code,
        "seconds": round(look.run.seconds, 3),
        "steps": measured.steps,
        "mode": mode,
        "boundaries_per_step": measured.load.events,
        "tensors_per_step": measured.load.tensors["verify"] + measured.load.state_tensors,
    }


def _common(found: Discovery) -> dict[str, Any]:
    return {
        "steps": found.steps,
        "boundaries_per_step": found.shared,
        "sites": len(found.sites),
        "renamed": sum(1 for site in found.sites if site.other is not None),
        "unsure": sum(1 for site in found.sites if site.confidence == 1),
        "share": {"reference": round(found.share[0], 4), "suspect": round(found.share[1], 4)},
    }


def _alone(alone: tuple[Alone, ...], per_step: int) -> dict[str, Any]:
    shown = [{**one.key.to_dict(), "at": str(one.spot), "every": one.every, "first": one.first} for one in alone[:EXAMPLES]]
    return {"boundaries_per_step": per_step, "sites": len(alone), "examples": shown}


def _cost(request: PreflightRequest, measured: Mapping[str, Measured]) -> dict[str, Any]:
    from opguard_core.preflight.estimate import disk, mode_costs

    room = disk(measured, request.recorded_steps, max(0, _free_bytes() - MIN_FREE_BYTES))
    mode = request.compare.capture.mode
    per_side = {
        name: {
            "step_s": side.bare_s,
            "observed_step_s": side.observed_s,
            "ratio": side.ratio,
            "clock": side.clock,
            "step_bytes": side.disk_step_bytes,
            "start_bytes": side.disk_start_bytes,
            "modes": mode_costs(side, mode, MODES),
        }
        for name, side in measured.items()
    }
    return {"mode": mode, "planned_steps": request.recorded_steps, **per_side, "disk": room, "fits": room.fits}


def _free_bytes() -> int:
    """Room where results go by default."""
    folder = runs_dir()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _warnings(request: PreflightRequest, looks: Mapping[str, _Look], report: Mapping[str, Any]) -> list[str]:
    """What to know before the long run, worst first."""
    said = [
        f"{item['key']} changes arithmetic and differs: {str(item['reference'])[:80]!r} and {str(item['suspect'])[:80]!r}."
        for item in report["contract"]
        if item["severity"] == "arithmetic"
    ]
    room = report["cost"]["disk"]
    if room.fits is False:
        said.append(
            f"The traces of {room.planned_steps} steps need about {room.needed_bytes >> 20} MiB; {room.free_bytes >> 20} MiB may be used. "
            "Name a folder on a larger disk, or record fewer steps."
        )
    for name, look in looks.items():
        steps = report["sides"][name]["steps"]
        if look.run.exit_code not in (None, 0):
            said.append(f"The {name} ended with {look.run.exit_code} after {steps} steps.")
        elif look.how == "cut":
            said.append(f"The {name} had made {steps} steps when its time was over; it was ended.")
        elif steps < request.first:
            said.append(f"The {name} made {steps} steps and ended by itself; {request.first} were asked for.")
    if any(report["cost"][name]["clock"] == "work" for name in looks):
        said.append("The machine is busy: times are the work of the training's thread, not what passed; measure again when it is quiet.")
    share = min(report["common"]["share"].values())
    if not report["common"]["steps"]:
        said.append("The two sides have no step in common: where one goes on from a checkpoint, let the other one start there as well.")
    elif share < 0.5:
        said.append(
            f"Only {share:.0%} of one side's boundaries outside the data have a counterpart: these may not be two versions of one program."
        )
    return said


def _make_plan(request: PreflightRequest, found: Discovery, report: Mapping[str, Any]) -> dict[str, Any]:
    """Write the plan; the site counts of set-up are left out where no run will record it."""
    capture = request.compare.capture
    later = capture.steps is not None and capture.steps[0] > 0
    sites = tuple(replace(site, first=0) for site in found.sites if site.every) if later else found.sites
    if not sites:
        raise PlanError(
            "The two sides share no boundary, so there is no plan.",
            slug="plan-empty",
            hint="Check that both sides are the programs you meant.",
        )
    cost = report["cost"]
    about = {
        "opguard": __version__,
        "steps_looked_at": found.steps,
        "alone": {side: report["alone"][side]["sites"] for side in ("reference", "suspect")},
        "cost": {
            "planned_steps": request.recorded_steps,
            **{side: {key: cost[side][key] for key in ("step_bytes", "start_bytes", "ratio")} for side in ("reference", "suspect")},
        },
    }
    plan = Plan(capture.mode, capture.steps, capture.deterministic, sites, about)
    assert request.plan is not None
    path = request.plan.expanduser().absolute()
    plan.save(path)
    return {
        "file": str(path),
        "hash": plan.hash,
        "sites": len(sites),
        "mode": plan.mode,
        "steps": plan.steps,
        "deterministic": plan.deterministic,
    }
