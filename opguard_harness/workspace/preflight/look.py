"""Run the first steps of both sides in private copies.

Each copy is ended once its first steps were recorded and a few more were timed without observation. From the two short
traces: the boundaries in common and what each side has alone, contract differences, what observing costs, and the plan.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from opguard_core.errors import Interrupted, NothingCaptured, TimedOut
from opguard_harness.access.traces import trace_folder
from opguard_harness.compare.folders import private_copy, scratch
from opguard_harness.compare.interpreter import Interpreter, find
from opguard_harness.compare.launching import SideRun, run_side
from opguard_harness.compare.processes import Interrupts
from opguard_harness.compare.request import CaptureRequest
from opguard_harness.compare.sides import ProgramSide, Side, TraceSide, resolve
from opguard_harness.report.progress import Progress
from opguard_harness.workspace.preflight.findings import findings
from opguard_harness.workspace.preflight.plan import refuse_place_of_plan
from opguard_harness.workspace.preflight.request import Look, PreflightRequest

BARE_STEPS = 3


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
    refuse_place_of_plan(request)
    with scratch("preflight", [both.reference.folder, both.suspect.folder]) as folder:
        sides = [_private(side, folder) for side in resolve(both, folder)]
        interpreter = find(both.capture.python) if any(isinstance(side, ProgramSide) for side in sides) else None
        if interpreter is not None and interpreter.untested():
            progress.say(f"note: {interpreter.untested()}")
        looks = _run_all(sides, interpreter, request, folder, progress)
        progress.say("comparing what both sides do")
        progress.steps("comparing", None, None)
        return findings(request, looks)


def _private(side: Side, folder: Path) -> Side:
    """The side in a copy of its own; a checked-out commit is one already."""
    if isinstance(side, TraceSide) or side.folder != side.origin:
        return side
    return replace(side, folder=private_copy(side.folder, folder / side.name))


def _run_all(
    sides: list[Side], interpreter: Interpreter | None, request: PreflightRequest, folder: Path, progress: Progress
) -> dict[str, Look]:
    capture = replace(request.compare.capture, steps=None, end_after=request.first, bare_steps=BARE_STEPS)
    looks = {}
    with Interrupts() as interrupts:
        for side in sides:
            if isinstance(side, TraceSide):
                looks[side.name] = Look(SideRun(side.name, side.trace, None, 0.0), "stored")
                continue
            assert interpreter is not None, "a program side has an interpreter"
            looks[side.name] = _first_steps(side, interpreter, capture, folder / f"{side.name}-results", interrupts, progress)
    if interrupts.count:
        raise Interrupted("Interrupted when both programs had run.", hint="Run the command again.")
    return looks


def _first_steps(
    side: ProgramSide, interpreter: Interpreter, capture: CaptureRequest, folder: Path, interrupts: Interrupts, progress: Progress
) -> Look:
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
        return Look(SideRun(side.name, trace, None, capture.timeout_s or 0.0), "cut")
    early = "step_times" in read_run_manifest(run.trace).extra
    return Look(run, "ended" if early else "finished")
