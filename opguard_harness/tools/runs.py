"""Tools about runs: what there is, one observed run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opguard_harness.errors import InvalidArguments
from opguard_harness.tools.budget import within
from opguard_harness.tools.declaration import Next, Result, Tool, Truncated, argument

_LIST_CHARS = 8_000
_PROGRAMS = ("python", "python3", "torchrun", "accelerate")


@dataclass(frozen=True)
class ListRunsArguments:
    limit: int = argument("Rows to return, newest first.", 20, ge=1, le=200)
    cursor: str = argument("`cursor` of the previous answer, to go on.", "")


@dataclass(frozen=True)
class RunRow:
    """One entry of the state folder. ``kind``: "compare" (two sides and a verdict) or "run" (one trace)."""

    id: str
    kind: str
    path: str
    verdict: str
    mode: str


@dataclass(frozen=True, kw_only=True)
class ListRunsResult(Result):
    runs: list[RunRow] = field(default_factory=list)


def list_runs(arguments: ListRunsArguments) -> ListRunsResult:
    """List what the state folder holds."""
    from opguard_harness.workspace.stored import stored_runs

    rows = stored_runs()
    names = [row.id for row in rows]
    if arguments.cursor and arguments.cursor not in names:
        raise InvalidArguments(
            f"list_runs: cursor {arguments.cursor[:80]!r} is not the id of a run.", hint="Leave the cursor out to start over."
        )
    first = names.index(arguments.cursor) + 1 if arguments.cursor else 0
    page = [RunRow(row.id, row.kind, str(row.path), row.verdict, row.mode) for row in rows[first : first + arguments.limit]]
    cut = Truncated(len(page), len(rows), page[-1].id) if first + len(page) < len(rows) else None
    comparisons = [row for row in page if row.kind == "compare"]
    following = [Next("first_difference", {"comparison": comparisons[0].id}, "what the newest comparison found")] if comparisons else []
    return ListRunsResult(summary=f"{len(rows)} stored runs and comparisons.", runs=page, truncated=cut, next=following)


@dataclass(frozen=True)
class RunGuardedArguments:
    folder: str = argument("Folder the program runs in.")
    command: list[str] = argument("Command line; `python` means the training Python.", ["python", "train.py"], min_length=1)
    python: str = argument("Training Python: a path or a name on PATH; empty looks for one.", "")
    mode: str = argument(
        "How much is read: verify, full, trusted or sentinel; empty: full, or the plan's.", "", pattern="^(verify|full|trusted|sentinel)?$"
    )
    plan: str = argument("Plan file of a preflight: fixes mode, steps and determinism; its sites are looked for in the run.", "")
    steps: str = argument("Window A:B of 0-based steps, B not included; empty for all.", "", pattern=r"^(\d+:\d+)?$")
    deterministic: bool = argument("Apply the determinism settings and record them.", False)
    env: list[str] = argument("Variables for the program, each NAME=VALUE.", [])
    timeout_s: float = argument("Seconds it may run; 0 for no limit.", 0.0, ge=0)


@dataclass(frozen=True, kw_only=True)
class RunGuardedResult(Result):
    run: str
    trace: str
    exit: int | None
    seconds: float
    contents: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] | None = None


def run_guarded(arguments: RunGuardedArguments) -> RunGuardedResult:
    """Run one program once, in its own folder, under capture."""
    from opguard_harness.compare.planned import capture_under, section
    from opguard_harness.compare.request import steps_of
    from opguard_harness.workspace.guarded import capture_once

    capture = capture_under(
        Path(arguments.plan) if arguments.plan else None,
        mode=arguments.mode or None,
        steps=steps_of(arguments.steps),
        deterministic=arguments.deterministic,
        python=Path(arguments.python) if arguments.python else None,
        timeout_s=arguments.timeout_s or None,
    )
    stored, run, contents = capture_once(
        Path(arguments.folder),
        program(arguments.command),
        capture,
        env=arguments.env,
    )
    summary = f"Run {stored.name} ended with {run.exit_code} and left {contents['events']} boundaries of {contents['ranks']} rank(s)."
    plan = None
    if capture.plan is not None:
        plan = {"hash": capture.plan.hash, **section(capture.plan, run.trace)}
        plan.update({name: within(plan[name], _LIST_CHARS) for name in ("moves", "missing")})
        summary += (
            f" Of the plan's {plan['sites']} sites {plan['found']} were found, {plan['moved']} moved, {plan['missing_total']} are missing."
        )
    following = [Next("align", {"reference": stored.name, "suspect": "<another run>"}, "compare it with another run")]
    return RunGuardedResult(
        summary=summary,
        run=stored.name,
        trace=str(stored / "trace"),
        exit=run.exit_code,
        seconds=round(run.seconds, 3),
        contents=contents,
        plan=plan,
        next=following,
    )


def program(command: list[str]) -> tuple[str, ...]:
    """The command line, if its program is one that tools may start.

    Raises:
        InvalidArguments: It starts something else, or code given on the command line.
    """
    if command[0] not in _PROGRAMS:
        raise InvalidArguments(
            f"command: a tool starts {', '.join(_PROGRAMS)} and nothing else (got {command[0][:60]!r}).",
            hint="Start other programs yourself with `opguard-harness compare ... -- ARGV`.",
        )
    if command[0] in ("python", "python3"):
        options = [word for word in command[1:2] if word.startswith("-") and not word.startswith("-m")]
        if options:
            raise InvalidArguments(f"command: {options[0][:60]!r} is not a script or -m MODULE.", hint="Put the code into a script.")
    return tuple(command)


TOOLS = (
    Tool(
        name="run_guarded",
        group="runs",
        text="Run one training once, in its own folder, with every operator boundary observed. Use it to capture a run now and compare it "
        "later with `align`.",
        arguments=RunGuardedArguments,
        result=RunGuardedResult,
        run=run_guarded,
        read_only=False,
        destructive=True,
        idempotent=False,
        open_world=True,
    ),
    Tool(
        name="list_runs",
        group="runs",
        text="List stored runs and comparisons, newest first. Use it to find the id that the other tools take.",
        arguments=ListRunsArguments,
        result=ListRunsResult,
        run=list_runs,
        read_only=True,
    ),
)
