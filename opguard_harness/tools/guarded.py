"""Tool `run_guarded`: one observed run, kept for a later comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_harness.interface.declaration import Kind, Next, Result, Role, Tool, argument
from opguard_harness.report.progress import Progress
from opguard_harness.tools import sides
from opguard_harness.tools.budget import within

if TYPE_CHECKING:
    from opguard_harness.compare.request import CaptureRequest

_LIST_CHARS = 4_000


@dataclass(frozen=True)
class RunGuardedArguments:
    folder: str = argument("Folder the program runs in.", role=Role.SIDE)
    command: list[str] = argument(sides.COMMAND, sides.DEFAULT_COMMAND, role=Role.COMMAND, min_length=1)
    python: str = argument(sides.PYTHON, "", role=Role.PYTHON)
    mode: str = argument("verify, full, trusted or sentinel; empty: full, or the plan's.", "", pattern="^(verify|full|trusted|sentinel)?$")
    plan: str = argument(sides.PLAN, "", role=Role.FILE)
    semantic: list[str] = argument(sides.SEMANTIC, [])
    callsites: list[str] = argument(sides.CALLSITES, [])
    steps: str = argument(sides.STEPS, "", pattern=sides.WINDOW)
    deterministic: bool = argument(sides.DETERMINISTIC, False)
    env: list[str] = argument(sides.VARIABLES.format(side="program"), [], role=Role.VARIABLES)
    timeout_s: float = argument("Seconds it may run; 0 for no limit.", 0.0, ge=0)
    case: str = argument(sides.CASE, "")
    token: str = argument(sides.RUN_AGAIN, "", max_length=64)


@dataclass(frozen=True, kw_only=True)
class RunGuardedResult(Result):
    run: str
    trace: str
    exit: int | None
    seconds: float
    contents: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] | None = None


def run_guarded(arguments: RunGuardedArguments, progress: Progress) -> RunGuardedResult:
    """Run one program once, in its own folder, under capture; the run is kept under the job's id."""
    from opguard_harness.compare.planned import section
    from opguard_harness.workspace.guarded import capture_once
    from opguard_harness.workspace.stored import result_folder

    capture = capture_of(arguments)
    out = result_folder(progress.job, "run")
    folder = Path(arguments.folder)
    stored, run, contents = capture_once(folder, tuple(arguments.command), capture, env=arguments.env, out=out, progress=progress)
    summary = f"Run {stored.name} ended with {run.exit_code} and left {contents['events']} boundaries of {contents['ranks']} rank(s)."
    plan = None
    if capture.plan is not None:
        plan = {"hash": capture.plan.hash, **section(capture.plan, run.trace)}
        plan.update({name: within(plan[name], _LIST_CHARS) for name in ("moves", "missing")})
        summary += (
            f" Of the plan's {plan['sites']} sites {plan['found']} were found, {plan['moved']} moved, {plan['missing_total']} are missing."
        )
    return RunGuardedResult(
        summary=summary,
        run=stored.name,
        trace=str(stored / "trace"),
        exit=run.exit_code,
        seconds=round(run.seconds, 3),
        contents=contents,
        plan=plan,
        next=[_following(stored.name, arguments.case)],
    )


def capture_of(arguments: RunGuardedArguments) -> CaptureRequest:
    """How to observe; refuses what can be seen to be wrong before anything runs.

    Raises:
        OpGuardError: The folder, the plan or an option cannot be used.
    """
    from opguard_harness.compare.request import split_env
    from opguard_harness.workspace.guarded import existing_folder

    existing_folder(Path(arguments.folder))
    split_env(arguments.env, "env")
    return sides.capture(arguments)


def _following(run: str, case: str) -> Next:
    """Compare it with the run that was captured before it for the same purpose; without one, look at what there is."""
    from opguard_harness.workspace.counterpart import counterpart

    other = counterpart(run, case)
    if other is None:
        return Next("list_runs", {"kind": "run"}, "find the run to `align` this one with; the other side has none yet that fits")
    noted = {"case": case} if case else {}
    return Next("align", {"reference": other, "suspect": run, **noted}, "compare it with the newest run before it")


TOOLS = (
    Tool(
        name="run_guarded",
        group="runs",
        text="Run one training once, in its own folder, with every operator boundary observed. Use it to capture a run now and compare it "
        "later with `align`.",
        arguments=RunGuardedArguments,
        result=RunGuardedResult,
        run=run_guarded,
        check=capture_of,
        read_only=False,
        destructive=True,
        open_world=True,
        kind=Kind.JOB,
    ),
)
