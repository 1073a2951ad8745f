"""Tool `launch_preflight`: a look at both sides before a long run, and its plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_core.ids import SIDES
from opguard_harness.access.untrusted import one_line
from opguard_harness.answer.plain import plain
from opguard_harness.interface.declaration import Kind, Next, Result, Role, Tool, argument
from opguard_harness.report import device_words
from opguard_harness.report.progress import Progress
from opguard_harness.tools import sides
from opguard_harness.tools.budget import within
from opguard_harness.tools.contracts import setting
from opguard_harness.tools.verdict import contract_counts

if TYPE_CHECKING:
    from opguard_harness.workspace.preflight.request import PreflightRequest

_LIST_CHARS = 2_500
_EXAMPLES = 3
_EXAMPLE_CHARS = 160
_WORK_CHARS = 1_200
_WARNING_CHARS = 300
_COSTS = ("step_s", "observed_step_s", "ratio", "step_bytes", "basis")
_OF_SIDE = ("how", "exit", "steps", "boundaries_per_step")
_BY_HAND = " Next: `compare` with the same sides, words and variables, and `plan` set to `plan.file`; values of variables are not repeated."
_NOT_OF_COMPARE = ("steps", "window", "planned_steps", "deterministic", "mode", "timeout_s", "token")


@dataclass(frozen=True)
class LaunchPreflightArguments:
    reference: str = argument(sides.REFERENCE, role=Role.SIDE)
    suspect: str = argument(sides.SUSPECT, role=Role.SIDE)
    command: list[str] = argument(sides.COMMAND, sides.DEFAULT_COMMAND, role=Role.COMMAND, min_length=1)
    python: str = argument(sides.PYTHON, "", role=Role.PYTHON)
    steps: int = argument("Steps to look at; the copies are ended soon after.", 3, ge=2)
    mode: str = argument("Mode of the look and of the plan: verify, full or trusted.", "full", pattern="^(verify|full|trusted)$")
    window: str = argument("Steps A:B that the long run will record; empty for all.", "", pattern=sides.WINDOW)
    planned_steps: int = argument("Steps of the long run, to estimate its traces; 0 if unknown.", 0, ge=0)
    deterministic: bool = argument("Apply the determinism settings, here and in the plan.", False)
    reference_commit: str = argument(sides.COMMIT, "", role=Role.COMMIT)
    reference_args: list[str] = argument(sides.WORDS.format(side="reference"), [], role=Role.WORDS)
    suspect_args: list[str] = argument(sides.WORDS.format(side="suspect"), [], role=Role.WORDS)
    reference_env: list[str] = argument(sides.VARIABLES.format(side="reference"), [], role=Role.VARIABLES)
    suspect_env: list[str] = argument(sides.VARIABLES.format(side="suspect"), [], role=Role.VARIABLES)
    timeout_s: float = argument("Seconds each side may run; what it did until then is used.", 120.0, gt=0)
    case: str = argument(sides.CASE, "")
    token: str = argument(sides.RUN_AGAIN, "", max_length=64)


@dataclass(frozen=True, kw_only=True)
class LaunchPreflightResult(Result):
    """``contract``: number of settings that differ, those that change arithmetic or order, and their values in ``settings``."""

    warnings: list[str] = field(default_factory=list)
    contract: dict[str, Any] = field(default_factory=dict)
    settings: list[dict[str, Any]] = field(default_factory=list)
    common: dict[str, Any] = field(default_factory=dict)
    alone: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    sides: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] | None = None
    device_work: dict[str, Any] = field(default_factory=dict)


def launch_preflight(arguments: LaunchPreflightArguments, progress: Progress) -> LaunchPreflightResult:
    """Run the first steps of both sides in private copies; report what they share, what it costs, and the plan."""
    from opguard_harness.workspace.preflight.look import preflight

    found = plain(preflight(replace(request_of(arguments), plan=_new_plan(progress.job)), progress))
    following = _following(arguments, found)
    return LaunchPreflightResult(
        summary=_summary(found) + ("" if following else _BY_HAND),
        warnings=within([one_line(text, _WARNING_CHARS) for text in found["warnings"]], _LIST_CHARS),
        contract=contract_counts(found["contract"]),
        settings=within([setting(item) for item in found["contract"] if item["severity"] in ("arithmetic", "order")], _LIST_CHARS),
        common=found["common"],
        alone={side: _alone(told) for side, told in found["alone"].items()},
        cost=_cost(found["cost"]),
        sides={side: {key: told[key] for key in _OF_SIDE} for side, told in found["sides"].items()},
        plan=found["plan"],
        device_work={
            **_device_work(found.get("device_work")),
            **{f"profiler_{side}": one_line(device_words.profiled(check), 600) for side, check in found.get("kernel_check", {}).items()},
        },
        next=following,
    )


def request_of(arguments: LaunchPreflightArguments) -> PreflightRequest:
    """What is asked for, less the file of the plan; refuses what can be seen to be wrong before anything runs.

    Raises:
        OpGuardError: A side or an option cannot be used.
    """
    from opguard_harness.compare.request import CaptureRequest, CompareRequest, steps_of
    from opguard_harness.workspace.preflight.request import PreflightRequest

    capture = CaptureRequest(
        mode=arguments.mode,
        steps=steps_of(arguments.window, "window"),
        deterministic=arguments.deterministic,
        python=sides.path_or_none(arguments.python),
        timeout_s=arguments.timeout_s,
    )
    both = CompareRequest(*sides.both(arguments), capture=capture, argv=tuple(arguments.command))
    return PreflightRequest(both, first=arguments.steps, planned_steps=arguments.planned_steps or None)


def _new_plan(job: str) -> Path:
    """A file in the state folder: the job's, or a new one."""
    from opguard_harness.config import fresh_name, plans_dir, private_dir

    return private_dir(plans_dir()) / f"{job or fresh_name('plan')}.json"


def _alone(told: dict[str, Any]) -> dict[str, Any]:
    """What only one side has: counts, and examples in one line each; all of these come from that side's program."""
    lines = [
        f"{one['operator']} in {one['phase']}, {one['every']} a step: {one['text']} ({one['at']})" for one in told["examples"][:_EXAMPLES]
    ]
    return {**told, "examples": [one_line(line, _EXAMPLE_CHARS) for line in lines]}


def _device_work(work: dict[str, Any] | None) -> dict[str, Any]:
    """Shares of it with a boundary, how many sites launch any, what has no boundary, and kernels of one side only: a line each."""
    if work is None:
        return {}
    told: dict[str, Any] = {side: one_line(device_words.of_side(work[side]), _WARNING_CHARS) for side in SIDES if work[side]}
    if work["sites"] is not None:
        told["sites"] = {key: work["sites"][key] for key in ("both", "idle", "one_sided_total", "alone")}
    ranks = [(side, rank) for side in SIDES for rank in work[side].values() if rank["watched"]]
    loose = [f"{side}: {device_words.loose(row)}" for side, rank in ranks for row in rank["unattributed"]]
    rows = {"without_boundary": loose, "one_sided": [device_words.lead(row) for row in work["one_sided"]]}
    told |= {key: within([one_line(line, _EXAMPLE_CHARS) for line in lines], _WORK_CHARS) for key, lines in rows.items() if lines}
    return told


def _cost(cost: dict[str, Any]) -> dict[str, Any]:
    """What observing costs, without the estimates for other modes."""
    room = {key: value for key, value in cost["disk"].items() if value is not None}
    return {"mode": cost["mode"], **{side: {key: cost[side][key] for key in _COSTS} for side in SIDES}, "disk": room}


def _summary(found: dict[str, Any]) -> str:
    common, alone, contract = found["common"], found["alone"], found["contract"]
    arithmetic = [item for item in contract if item["severity"] == "arithmetic"]
    ratios = [found["cost"][side]["ratio"] for side in SIDES if found["cost"][side]["ratio"]]
    cost = f"observing costs about {max(ratios):.1f}x" if ratios else "the cost could not be timed"
    own = " and ".join(f"{alone[side]['boundaries_per_step']} only in the {side}" for side in SIDES)
    settings = f"{len(contract)} contract differences, {len(arithmetic)} of them change arithmetic"
    return f"{common['boundaries_per_step']} boundaries a step are common, {own}; {settings}; {cost} in mode {found['cost']['mode']}."


def _following(arguments: LaunchPreflightArguments, found: dict[str, Any]) -> list[Next]:
    """The comparison that this look was for, under its plan."""
    given = sides.repeatable(arguments)
    if given is None:  # values of variables are not written down again; the caller has them
        return []
    kept = {name: value for name, value in given.items() if name not in _NOT_OF_COMPARE}
    if any(item["severity"] == "arithmetic" for item in found["contract"]):
        why = "settings that change arithmetic differ: make them equal first, or expect to find what they do"
    else:
        why = "the long run of both sides under the plan, and the answer"
    return [Next("compare", {**kept, "plan": found["plan"]["file"]}, why)]


TOOLS = (
    Tool(
        name="launch_preflight",
        group="runs",
        text="Run the first steps of both sides in private copies and say what they share, what each has alone and what observing costs. "
        "Use it before a long comparison: it shows differing settings and makes the plan that both runs then follow.",
        arguments=LaunchPreflightArguments,
        result=LaunchPreflightResult,
        run=launch_preflight,
        check=request_of,
        read_only=False,
        destructive=True,
        open_world=True,
        kind=Kind.JOB,
    ),
)
