"""Tool `launch_preflight`: a look at both sides before a long run, and its plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opguard_core.ids import SIDES
from opguard_harness.answer.plain import plain
from opguard_harness.tools.budget import within
from opguard_harness.tools.declaration import Next, Result, Tool, argument
from opguard_harness.tools.runs import program

_LIST_CHARS = 12_000


@dataclass(frozen=True)
class LaunchPreflightArguments:
    reference: str = argument("Folder, script or trace of the reference.")
    suspect: str = argument("Folder, script or trace of the suspect.")
    command: list[str] = argument("Command line of both; `python` means the training Python.", ["python", "train.py"], min_length=1)
    python: str = argument("Training Python: a path or a name on PATH; empty looks for one.", "")
    steps: int = argument("Steps to look at; each private copy is ended after them and a few unobserved ones.", 3, ge=2)
    mode: str = argument("Mode of the look and of the plan: verify, full or trusted.", "full", pattern="^(verify|full|trusted)$")
    window: str = argument("Window A:B of steps that the long run will record, B not included; empty for all.", "", pattern=r"^(\d+:\d+)?$")
    planned_steps: int = argument("Steps of the long run, to estimate its traces; 0 if unknown.", 0, ge=0)
    deterministic: bool = argument("Apply the determinism settings, here and in the plan.", False)
    plan: str = argument("File for the plan, outside both sides; empty writes it to the state folder.", "")
    timeout_s: float = argument("Seconds each side may run; what it did until then is used.", 120.0, gt=0)


@dataclass(frozen=True, kw_only=True)
class LaunchPreflightResult(Result):
    warnings: list[str] = field(default_factory=list)
    contract: list[dict[str, Any]] = field(default_factory=list)
    common: dict[str, Any] = field(default_factory=dict)
    alone: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    sides: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] | None = None


def launch_preflight(arguments: LaunchPreflightArguments) -> LaunchPreflightResult:
    """Run the first steps of both sides in private copies; report what they share, what it costs, and the plan."""
    from opguard_harness.compare.request import CaptureRequest, CompareRequest, named_sides, steps_of
    from opguard_harness.report.progress import Silent
    from opguard_harness.workspace.preflight import PreflightRequest, preflight

    capture = CaptureRequest(
        mode=arguments.mode,
        steps=steps_of(arguments.window),
        deterministic=arguments.deterministic,
        python=Path(arguments.python) if arguments.python else None,
        timeout_s=arguments.timeout_s,
    )
    request = PreflightRequest(
        CompareRequest(*named_sides(arguments.reference, arguments.suspect), capture=capture, argv=program(arguments.command)),
        first=arguments.steps,
        planned_steps=arguments.planned_steps or None,
        plan=Path(arguments.plan) if arguments.plan else _new_plan(),
    )
    found = plain(preflight(request, Silent()))
    return LaunchPreflightResult(
        summary=_summary(found),
        warnings=within(found["warnings"], _LIST_CHARS // 3),
        contract=within(found["contract"], _LIST_CHARS),
        common=found["common"],
        alone=found["alone"],
        cost=found["cost"],
        sides=found["sides"],
        plan=found["plan"],
        next=_following(arguments, found),
    )


def _new_plan() -> Path:
    """A new file in the state folder."""
    from opguard_harness.config import fresh_name, plans_dir, private_dir

    return private_dir(plans_dir()) / f"{fresh_name('plan')}.json"


def _summary(found: dict[str, Any]) -> str:
    common, alone, contract = found["common"], found["alone"], found["contract"]
    arithmetic = [item for item in contract if item["severity"] == "arithmetic"]
    ratios = [found["cost"][side]["ratio"] for side in SIDES if found["cost"][side]["ratio"]]
    cost = f"observing costs about {max(ratios):.1f}x" if ratios else "the cost could not be timed"
    own = " and ".join(f"{alone[side]['boundaries_per_step']} only in the {side}" for side in SIDES)
    settings = f"{len(contract)} contract differences, {len(arithmetic)} of them change arithmetic"
    return f"{common['boundaries_per_step']} boundaries a step are common, {own}; {settings}; {cost} in mode {found['cost']['mode']}."


def _following(arguments: LaunchPreflightArguments, found: dict[str, Any]) -> list[Next]:
    if any(item["severity"] == "arithmetic" for item in found["contract"]):
        why = "settings that change arithmetic differ: make them equal first"
    else:
        why = "run each side under the plan, then `align` the two"
    given = {"folder": arguments.reference, "command": list(arguments.command), "plan": found["plan"]["file"]}
    return [Next("run_guarded", given, why)]


TOOLS = (
    Tool(
        name="launch_preflight",
        group="runs",
        text="Run the first steps of both sides in private copies and say what they share, what each has alone and what observing costs. "
        "Use it before a long comparison: it lists contract differences by severity and makes the plan that both runs then follow.",
        arguments=LaunchPreflightArguments,
        result=LaunchPreflightResult,
        run=launch_preflight,
        read_only=False,
        destructive=True,
        open_world=True,
    ),
)
