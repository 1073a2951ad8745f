"""Runs under a plan: what the plan fixes, whether its traces fit on the disk, and what became of its sites."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_core.errors import PlanError
from opguard_core.ids import SIDES
from opguard_core.plan.document import MAX_PLAN_BYTES, Plan, parse_plan
from opguard_harness.access.rules import current
from opguard_harness.compare.launching import SideRun
from opguard_harness.compare.request import CaptureRequest
from opguard_harness.config import MIN_FREE_BYTES
from opguard_harness.errors import PathRefused, SpaceShort
from opguard_harness.report.progress import Progress

if TYPE_CHECKING:
    from opguard_core.preflight.follow import Moved

SHOWN = 20


def capture_under(
    path: Path | None,
    *,
    mode: str | None,
    steps: tuple[int, int] | None,
    deterministic: bool,
    python: Path | None,
    timeout_s: float | None,
    semantic: tuple[str, ...] = (),
    callsites: tuple[str, ...] = (),
) -> CaptureRequest:
    """How to observe: what a plan fixes, or what was asked for.

    Args:
        path: File of the plan; None for none.
        mode: The mode that was asked for; None if none was.
        steps: The window that was asked for; None if none was.
        deterministic: Whether the determinism knobs were asked for.
        python: The training's interpreter.
        timeout_s: Seconds each side may run.
        semantic: Patterns of calls that get a name; empty: the plan's.
        callsites: Patterns of callees that are observed where they are called; empty: the plan's.

    Raises:
        PlanError: The plan cannot be read.
        ConflictingOptions: What was asked for contradicts the plan.
    """
    if path is None:
        return CaptureRequest(
            mode=mode or "full",
            steps=steps,
            deterministic=deterministic,
            semantic=semantic,
            callsites=callsites,
            python=python,
            timeout_s=timeout_s,
        )
    plan = read_plan(path)
    plan.require(
        mode=plan.mode if mode is None else mode,
        steps=plan.steps if steps is None else steps,
        deterministic=plan.deterministic or deterministic,
        semantic=semantic,
        callsites=callsites,
    )
    return CaptureRequest(
        mode=plan.mode,
        steps=plan.steps,
        deterministic=plan.deterministic,
        semantic=plan.semantic,
        callsites=plan.callsites,
        python=python,
        timeout_s=timeout_s,
        plan=plan,
    )


def read_plan(path: Path) -> Plan:
    """The plan of a file that a call may read.

    Raises:
        PlanError: It cannot be read, or is damaged.
        OutsideRoots: It may not be read.
    """
    hint = "Name the file that `launch_preflight` wrote."
    try:
        return parse_plan(current().read(path, "plan", MAX_PLAN_BYTES), path)
    except PathRefused as error:
        raise PlanError(error.message, slug="plan-not-found", hint=hint) from error
    except OSError as error:
        raise PlanError(f"The plan {path} cannot be read: {error.strerror}.", slug="plan-not-found", hint=hint) from error


def require_room(plan: Plan | None, folder: Path, *, sides: Sequence[str]) -> None:
    """Refuse a run whose traces would not fit, as far as the plan's preflight could tell.

    Args:
        plan: The plan, if there is one.
        folder: Where the results will lie; the disk of its first existing parent counts.
        sides: Sides that will be run.

    Raises:
        SpaceShort: They would not fit.
    """
    needed = None if plan is None else needed_bytes(plan, sides)
    if needed is None:
        return
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed + MIN_FREE_BYTES > free:
        raise SpaceShort(
            f"The plan's traces need about {needed >> 20} MiB; {free >> 20} MiB are free at {folder} ({MIN_FREE_BYTES >> 20} stay free).",
            hint="Name a folder on a larger disk with --out, or plan fewer steps: `window` of a preflight.",
        )


def needed_bytes(plan: Plan, sides: Sequence[str]) -> int | None:
    """Bytes of the traces of some sides, from what the preflight measured; None if it does not say."""
    cost = plan.about.get("cost")
    steps = _count(cost, "planned_steps")
    if steps is None or not isinstance(cost, Mapping):
        return None
    total = 0
    for side in sides:
        start, step = (_count(cost.get(side), key) for key in ("start_bytes", "step_bytes"))
        if start is None or step is None:
            return None
        total += start + steps * step
    return total


def _count(record: object, key: str) -> int | None:
    found = record.get(key) if isinstance(record, Mapping) else None
    return found if type(found) is int and found >= 0 else None


def heavier(plan: Plan | None) -> str:
    """The side whose trace needs more room: a single run may be either."""
    return max(SIDES, key=lambda side: needed_bytes(plan, [side]) or 0) if plan is not None else SIDES[0]


def section(plan: Plan, trace: Path) -> dict[str, Any]:
    """What became of a plan's sites in one run.

    Args:
        plan: The plan.
        trace: The run's trace directory.

    Raises:
        TraceFormatError: The trace cannot be read.
    """
    from opguard_core.preflight.follow import follow  # readers of traces cost a second to import
    from opguard_core.trace.reader import Run

    found = follow(plan, Run.open(trace))
    return {
        "sites": found.sites,
        "found": found.found,
        "moved": len(found.moved),
        "moves": [_move(one) for one in found.moved[:SHOWN]],
        "missing": [{**one.site.key.to_dict(), "wanted": one.wanted, "had": one.found} for one in found.missing[:SHOWN]],
        "missing_total": len(found.missing),
        "extra": len(found.extra),
        "steps": list(found.windows),
    }


def add_plan(answer: dict[str, Any], plan: Plan | None, runs: Sequence[SideRun], progress: Progress) -> None:
    """Say in an answer what became of a plan's sites; a side that was not recorded under it forbids a verdict.

    Args:
        answer: The answer, changed in place.
        plan: The plan, if there is one.
        runs: The runs of both sides.
        progress: Where to say it in a line.
    """
    if plan is None:
        return
    sides = {run.name: section(plan, run.trace) for run in runs}
    answer["plan"] = {"hash": plan.hash, "sites": len(plan.sites), **sides}
    for name, told in sides.items():
        had = f"{told['found'] + told['moved']} of {told['sites']} sites ({told['moved']} have moved)"
        progress.say(f"plan {plan.hash[:12]}: the {name} has {had}")
    others = {run.name: found for run in runs if (found := recorded_hash(run.trace)) != plan.hash}
    if others and not any(item["slug"] == "plan-mismatch" for item in answer["reasons"]):
        from opguard_core.certify.reasons import reason

        detail = ", ".join(f"the {side}'s trace has plan {found[:12] or 'unknown'}, not {plan.hash[:12]}" for side, found in others.items())
        answer["reasons"].insert(0, vars(reason("plan-mismatch", detail=detail)))
        answer.update(verdict="inconclusive", pivot=None)


def recorded_hash(trace: Path) -> str:
    """Hash of the plan that a trace was recorded under; "" if it does not say."""
    from opguard_core.trace.reader import Run

    run = Run.open(trace)
    stated = {str(found) for rank in run.ranks.values() if (found := rank.manifest.extra.get("plan_hash"))}
    stated |= {str(found)} if (found := run.manifest.extra.get("plan_hash")) else set()
    return stated.pop() if len(stated) == 1 else ""


def _move(move: Moved) -> dict[str, Any]:
    now = f"{move.now.function} | {move.now.text}"
    return {**move.site.key.to_dict(), "now": now, "at": str(move.spot), "score": move.score}
