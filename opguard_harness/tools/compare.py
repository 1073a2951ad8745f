"""Tool `compare`: run both sides and judge them, in one job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from opguard_core.plan.redact import redact_argv
from opguard_harness.interface.declaration import Kind, Role, Tool, argument
from opguard_harness.report.progress import Progress
from opguard_harness.tools import sides
from opguard_harness.tools.answers import Found
from opguard_harness.tools.leads import leads
from opguard_harness.tools.shown import shown
from opguard_harness.tools.verdict import VerdictResult, facts_of

if TYPE_CHECKING:
    from opguard_harness.compare.request import CompareRequest


@dataclass(frozen=True)
class CompareArguments:
    reference: str = argument(sides.REFERENCE, role=Role.SIDE)
    suspect: str = argument(sides.SUSPECT, role=Role.SIDE)
    command: list[str] = argument(sides.COMMAND, sides.DEFAULT_COMMAND, role=Role.COMMAND, min_length=1)
    mode: str = argument(
        "verify, full, trusted or sentinel (finds the step of a long run); empty: full.", "", pattern="^(verify|full|trusted|sentinel)?$"
    )
    steps: str = argument(sides.STEPS, "", pattern=sides.WINDOW)
    reference_commit: str = argument(sides.COMMIT, "", role=Role.COMMIT)
    reference_args: list[str] = argument(sides.WORDS.format(side="reference"), [], role=Role.WORDS)
    suspect_args: list[str] = argument(sides.WORDS.format(side="suspect"), [], role=Role.WORDS)
    reference_env: list[str] = argument(sides.VARIABLES.format(side="reference"), [], role=Role.VARIABLES)
    suspect_env: list[str] = argument(sides.VARIABLES.format(side="suspect"), [], role=Role.VARIABLES)
    plan: str = argument(sides.PLAN, "", role=Role.FILE)
    semantic: list[str] = argument(sides.SEMANTIC, [])
    callsites: list[str] = argument(sides.CALLSITES, [])
    filters: str = argument(sides.FILTERS, "", role=Role.FILE)
    narrow: bool = argument("Replay, in copies and mode verify, the step left open.", False)
    deterministic: bool = argument(sides.DETERMINISTIC, False)
    stop_on_contract: bool = argument("End as soon as settings that change arithmetic differ.", False)
    python: str = argument(sides.PYTHON, "", role=Role.PYTHON)
    timeout_s: float = argument("Seconds each side may run; 0 for no limit.", 0.0, ge=0)
    case: str = argument(sides.CASE, "")
    token: str = argument(sides.RUN_AGAIN, "", max_length=64)


@dataclass(frozen=True, kw_only=True)
class CompareResult(VerdictResult):
    """As of `align`. ``command``: what was run in the folders."""

    command: str = ""


def compare(arguments: CompareArguments, progress: Progress) -> CompareResult:
    """Run or read both sides, compare them, keep the results under the job's id."""
    from opguard_harness.compare import pipeline
    from opguard_harness.workspace.stored import result_folder

    out = result_folder(progress.job, "compare")
    answer = pipeline.compare(replace(request_of(arguments), out=out), progress)
    following = leads(answer, out.name, sides.repeatable(arguments))
    ran = any(Path(trace).is_relative_to(out) for trace in answer["trace"].values())
    return CompareResult(
        **facts_of(answer, out.name),
        command=shown(" ".join(redact_argv(arguments.command))) if ran else "",
        evidence=Found(answer, out.name).itself(),
        next=following,
    )


def request_of(arguments: CompareArguments) -> CompareRequest:
    """What is asked for; refuses what can be seen to be wrong before anything runs.

    Raises:
        OpGuardError: A side, the plan, the filters or an option cannot be used.
    """
    from opguard_harness.compare.request import CompareRequest
    from opguard_harness.workspace.filter_file import filters_named

    return CompareRequest(
        *sides.both(arguments),
        capture=replace(sides.capture(arguments), stop_on_contract=arguments.stop_on_contract),
        argv=tuple(arguments.command),
        narrow=arguments.narrow,
        filters=filters_named(arguments.filters),
    )


TOOLS = (
    Tool(
        name="compare",
        group="compare",
        text="Run the same command in both folders under observation and say where they first differ. Use it for the short path: one job "
        "does everything; `get_job` waits for it, then `first_difference` shows the place. A side may also be a script or a stored run.",
        arguments=CompareArguments,
        result=CompareResult,
        run=compare,
        check=request_of,
        read_only=False,
        destructive=True,
        open_world=True,
        kind=Kind.JOB,
    ),
)
