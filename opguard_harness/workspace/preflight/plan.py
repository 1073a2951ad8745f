"""The plan of a preflight: where it may lie, and what goes into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opguard_core import __version__
from opguard_core.errors import PlanError
from opguard_core.plan.document import Plan, check_target
from opguard_harness.access.rules import current
from opguard_harness.access.traces import trace_folder
from opguard_harness.errors import OutRefused
from opguard_harness.workspace.preflight.request import PreflightRequest

if TYPE_CHECKING:
    from opguard_core.preflight.discover import Discovery

_COST_KEYS = ("step_bytes", "start_bytes", "ratio", "observed_step_s")


def refuse_place_of_plan(request: PreflightRequest) -> None:
    """Before anything runs: a file of ours in a side would change what its source digest says.

    Raises:
        OutRefused: The plan would lie in one.
        PlanError: Something else is there.
        OutsideRoots: It would lie where nothing may be written.
    """
    if request.plan is None:
        return
    path = current().output(request.plan, "plan").resolve()
    for side in (request.compare.reference, request.compare.suspect):
        if trace_folder(side.folder) is None and path.is_relative_to(side.folder.resolve()):
            raise OutRefused(f"The plan {path} would lie inside the side {side.folder}.", hint="Name a file elsewhere with --plan.")
    check_target(path)


def make_plan(request: PreflightRequest, found: Discovery, report: Mapping[str, Any]) -> dict[str, Any]:
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
    about: dict[str, Any] = {
        "opguard": __version__,
        "steps_looked_at": found.steps,
        "alone": {side: report["alone"][side]["sites"] for side in ("reference", "suspect")},
        "cost": {
            "planned_steps": request.recorded_steps,
            **{side: {key: cost[side][key] for key in _COST_KEYS} for side in ("reference", "suspect")},
        },
    }
    if found.working is not None:
        about["device_work"] = {"sites": found.working.both, "idle_sites": found.working.idle}
    if found.kernel_times:
        about["kernel_times"] = found.kernel_times
    plan = Plan(capture.mode, capture.steps, capture.deterministic, sites, about, semantic=capture.semantic, callsites=capture.callsites)
    assert request.plan is not None
    path = current().output(request.plan, "plan")
    plan.save(path)
    return {
        "file": str(path),
        "hash": plan.hash,
        "sites": len(sites),
        "mode": plan.mode,
        "steps": plan.steps,
        "deterministic": plan.deterministic,
    }
