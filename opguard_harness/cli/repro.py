"""`repro`: the first difference as a program of one file that needs torch alone."""

from __future__ import annotations

from pathlib import Path

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = """Hand out repro.py and repro.safetensors: one operator with the inputs and arguments that both runs gave it. Run with torch alone,
it prints the reference's bits, the suspect's bits, and whether the operator agrees with itself in 100 runs.

\b
opguard-harness repro ev:0123456789ab/0/57 --out bug-42
opguard-harness repro confirm-0123456789ab
python bug-42/repro.py

`confirm_difference` keeps the tensors of a comparison's first difference; collectives, Python reads and custom operators cannot be
rebuilt from them and are refused with the reason."""


def repro(
    name: str = typer.Argument(
        ..., metavar="EVIDENCE|JOB", help="A boundary (ev:...) that a confirmation kept, or the confirmation's job."
    ),
    out: str = typer.Option("", metavar="DIR", help="Copy both files there; by default they stay in the job's folder."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> Outcome:
    """Find it, copy it if asked, and say how to run it."""
    from opguard_harness.report.escape import terminal
    from opguard_harness.workspace.repro import find_repro, hand_out

    found = find_repro(name)
    script = hand_out(found, Path(out).expanduser().absolute()) if out else found.script
    if as_json:
        return Outcome(dumps({"schema": 1, "job": found.job, "script": str(script), "events": found.events}))
    cited = [f"  {side}: {', '.join(ids)}" for side, ids in found.events.items()]
    return Outcome("\n".join([f"kept by {terminal(found.job)}:", *map(terminal, cited), f"run  python {terminal(str(script))}"]))
