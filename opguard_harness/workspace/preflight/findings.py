"""What the short runs of a preflight say, as plain values."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opguard_core.ids import MODES
from opguard_harness.compare.judging import contract_differences
from opguard_harness.config import MIN_FREE_BYTES, runs_dir
from opguard_harness.report import device_words
from opguard_harness.workspace.preflight.plan import make_plan
from opguard_harness.workspace.preflight.request import Look, PreflightRequest

if TYPE_CHECKING:
    from opguard_core.preflight.discover import Alone, Discovery
    from opguard_core.preflight.work import Measured

EXAMPLES = 8
REPLAYS = "replays of CUDA graphs"


def findings(request: PreflightRequest, looks: Mapping[str, Look]) -> dict[str, Any]:
    """What two short runs say; writes the plan if one was asked for.

    Args:
        request: What was asked.
        looks: Both sides by name.

    Raises:
        PlanError: They share no boundary, or the plan cannot be written.
        TraceFormatError: A trace cannot be read.
    """
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
        **_device_work(found),
    }
    checks = {name: check for name, run in runs.items() if isinstance(check := run.manifest.extra.get("kernel_check"), dict)}
    if checks:
        report["kernel_check"] = checks
    report["warnings"] = _warnings(request, looks, report)
    if request.plan is not None:
        report["plan"] = make_plan(request, found, report)
    return report


def _side(look: Look, measured: Measured, mode: str) -> dict[str, Any]:
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


def _device_work(found: Discovery) -> dict[str, Any]:
    """Device work of both sides, and which common sites do any; nothing where no rank had a device."""
    if found.device_work is None:
        return {}
    sites, names = found.working, ("reference", "suspect")
    if sites is None:
        return {"device_work": {**found.device_work, "sites": None}}
    examples = [{**site.key.to_dict(), "launches": dict(zip(names, counts, strict=True))} for site, counts in sites.one_sided[:EXAMPLES]]
    told = {
        "both": sites.both,
        "idle": sites.idle,
        "one_sided": examples,
        "one_sided_total": len(sites.one_sided),
        "alone": {side: {"sites": lone[0], "launches": lone[1]} for side, lone in zip(names, sites.alone, strict=True)},
    }
    return {"device_work": {**found.device_work, "sites": told}}


def _alone(alone: tuple[Alone, ...], per_step: int) -> dict[str, Any]:
    shown = [{**one.key.to_dict(), "at": str(one.spot), "every": one.every, "first": one.first} for one in alone[:EXAMPLES]]
    return {"boundaries_per_step": per_step, "sites": len(alone), "examples": shown}


def _cost(request: PreflightRequest, measured: Mapping[str, Measured]) -> dict[str, Any]:
    from opguard_core.preflight.estimate import basis, disk, mode_costs

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
            "basis": basis(side),
            "device_bytes": side.device_bytes,
            "pinned_bytes": side.pinned_bytes,
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


def _warnings(request: PreflightRequest, looks: Mapping[str, Look], report: Mapping[str, Any]) -> list[str]:
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
    said += _loose_work(report.get("device_work"))
    said += [
        f"The record of launches missed kernels that the profiler saw on the {name}: {device_words.counted(check['missed'])}."
        for name, check in report.get("kernel_check", {}).items()
        if check.get("missed")
    ]
    share = min(report["common"]["share"].values())
    if not report["common"]["steps"]:
        said.append("The two sides have no step in common: where one goes on from a checkpoint, let the other one start there as well.")
    elif share < 0.5:
        said.append(
            f"Only {share:.0%} of one side's boundaries outside the data have a counterpart: these may not be two versions of one program."
        )
    return said


def _loose_work(work: Mapping[str, Any] | None) -> list[str]:
    """Device work that no boundary stands for and that may touch observed tensors: it will bound the verdict."""
    said = []
    for side in ("reference", "suspect") if work is not None else ():
        ranks = [rank for rank in work[side].values() if rank["watched"]] if work is not None else []
        count = sum(rank["touching"] for rank in ranks)
        if count:
            names = list(dict.fromkeys(row["name"] for rank in ranks for row in rank["unattributed"] if row["touching"])) or [REPLAYS]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            said.append(
                f"{count} pieces of device work of the {side} belong to no boundary and may touch observed tensors ({', '.join(names[:3])}"
                f"{more}): while they do, no answer can be `identical`. Let them run inside an operator."
            )
    return said
