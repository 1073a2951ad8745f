"""`preflight`: a look at both sides before a long run, and the plan of it."""

from __future__ import annotations

from pathlib import Path

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = """Run the first steps of both sides in private copies; say what they share, what it will cost, and make the plan.

\b
opguard-harness preflight --reference old/ --suspect new/ -- python train.py
opguard-harness preflight --reference old/ --suspect new/ --mode verify --plan ~/run.plan.json -- python train.py
opguard-harness compare --reference old/ --suspect new/ --plan ~/run.plan.json -- python train.py

Both copies are ended after N steps; nothing of them is kept. Exit codes: 0 done, 2 error, 130 interrupted."""


def preflight(
    argv: list[str] = typer.Argument(None, metavar="-- ARGV...", help="Command line of both programs.", show_default=False),
    reference: str = typer.Option("", help="Folder, script or trace that is right."),
    suspect: str = typer.Option(..., help="Folder, script or trace in question."),
    reference_commit: str = typer.Option("", metavar="REV", help="Run this commit of the reference folder's repository."),
    reference_args: str = typer.Option("", metavar="WORDS", help="Words appended to the reference's command line."),
    suspect_args: str = typer.Option("", metavar="WORDS", help="Words appended to the suspect's command line."),
    reference_env: list[str] = typer.Option([], metavar="K=V", help="Variable for the reference; may be repeated."),
    suspect_env: list[str] = typer.Option([], metavar="K=V", help="Variable for the suspect; may be repeated."),
    steps: int = typer.Option(3, metavar="N", help="Steps to look at; each copy is ended after them and a few unobserved ones."),
    mode: str = typer.Option("full", metavar="verify|full|trusted", help="Mode of the look and of the plan."),
    window: str = typer.Option("", metavar="A:B", help="Steps that the long run will record, for the plan; default: all."),
    planned_steps: int = typer.Option(None, metavar="N", help="Steps of the long run, to estimate its traces.", show_default=False),
    deterministic: bool = typer.Option(False, "--deterministic", help="Apply the determinism settings, here and in the plan."),
    plan: str = typer.Option("", metavar="FILE", help="Write the plan to this file, outside both sides."),
    python: str = typer.Option("", metavar="PATH", help="Interpreter with torch that runs the programs."),
    timeout: float = typer.Option(600.0, metavar="S", help="Seconds each side may run; what it did until then is used."),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as one JSON object."),
) -> Outcome:
    """Translate options into a request, and the findings into text."""
    from opguard_harness.compare.request import CaptureRequest, CompareRequest, named_sides, steps_of
    from opguard_harness.report.preflight_page import preflight_page
    from opguard_harness.report.progress import Progress
    from opguard_harness.workspace.preflight import PreflightRequest
    from opguard_harness.workspace.preflight import preflight as look

    sides = named_sides(
        reference,
        suspect,
        reference_commit=reference_commit,
        words=(reference_args, suspect_args),
        env=(reference_env, suspect_env),
    )
    capture = CaptureRequest(
        mode=mode,
        steps=steps_of(window, "--window"),
        deterministic=deterministic,
        python=Path(python) if python else None,
        timeout_s=timeout,
    )
    request = PreflightRequest(
        CompareRequest(*sides, capture=capture, argv=tuple(argv) if argv else None),
        first=steps,
        planned_steps=planned_steps,
        plan=Path(plan) if plan else None,
    )
    found = look(request, Progress())
    return Outcome(dumps({"schema": 1, **found}) if as_json else "\n".join(preflight_page(found)))
