"""`preflight`: a look at both sides before a long run, and the plan of it."""

from __future__ import annotations

from pathlib import Path

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli import side_options
from opguard_harness.cli.outcome import Outcome

HELP = """Run the first steps of both sides in private copies; say what they share, what it will cost, and make the plan.

\b
opguard-harness preflight --reference old/ --suspect new/ -- python train.py
opguard-harness preflight --reference old/ --suspect new/ --mode verify --plan ~/run.plan.json -- python train.py
opguard-harness compare --reference old/ --suspect new/ --plan ~/run.plan.json -- python train.py

Both copies are ended after N steps; nothing of them is kept. Exit codes: 0 done, 2 error, 130 interrupted."""


def preflight(
    *,
    argv: side_options.Argv = None,
    reference: side_options.Reference = "",
    suspect: side_options.Suspect,
    reference_commit: side_options.ReferenceCommit = "",
    reference_args: side_options.ReferenceArgs = "",
    suspect_args: side_options.SuspectArgs = "",
    reference_env: side_options.ReferenceEnv = [],
    suspect_env: side_options.SuspectEnv = [],
    steps: int = typer.Option(3, metavar="N", help="Steps to look at; each copy is ended after them and a few unobserved ones."),
    mode: str = typer.Option("full", metavar="verify|full|trusted", help="Mode of the look and of the plan."),
    window: str = typer.Option("", metavar="A:B", help="Steps that the long run will record, for the plan; default: all."),
    planned_steps: int = typer.Option(None, metavar="N", help="Steps of the long run, to estimate its traces.", show_default=False),
    deterministic: bool = typer.Option(False, "--deterministic", help="Apply the determinism settings, here and in the plan."),
    semantic: side_options.Semantic = [],
    callsites: side_options.Callsites = [],
    plan: str = typer.Option("", metavar="FILE", help="Write the plan to this file, outside both sides."),
    python: side_options.Python = "",
    timeout: float = typer.Option(600.0, metavar="S", help="Seconds each side may run; what it did until then is used."),
    as_json: side_options.AsJson = False,
) -> Outcome:
    """Translate options into a request, and the findings into text."""
    from opguard_core.plan.callsites import parse_callsites
    from opguard_harness.compare.request import CaptureRequest, CompareRequest, named_sides, steps_of
    from opguard_harness.report.preflight_page import preflight_page
    from opguard_harness.report.progress import Progress
    from opguard_harness.workspace.preflight.look import preflight as look
    from opguard_harness.workspace.preflight.request import PreflightRequest

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
        semantic=tuple(semantic),
        callsites=parse_callsites(callsites),
        attached=True,
    )
    request = PreflightRequest(
        CompareRequest(*sides, capture=capture, argv=tuple(argv) if argv else None),
        first=steps,
        planned_steps=planned_steps,
        plan=Path(plan) if plan else None,
    )
    found = look(request, Progress())
    return Outcome(dumps({"schema": 1, **found}) if as_json else "\n".join(preflight_page(found)))
