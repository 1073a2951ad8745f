"""`demo`: the shipped pair, end to end."""

from __future__ import annotations

from pathlib import Path

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = "Compare the shipped pair of small trainings, of which one has a planted bug; exit code 0 when it was found."


def demo(
    python: str = typer.Option("", metavar="PATH", help="Interpreter with torch that runs the programs."),
    mode: str = typer.Option("verify", metavar="verify|full|trusted", help="How much is read."),
    out: str = typer.Option("", metavar="DIR", help="Folder for the results: absent or empty."),
    as_json: bool = typer.Option(False, "--json", help="Print the answer as one JSON object."),
) -> Outcome:
    """Run the demo and say what it found."""
    from opguard_harness.compare.request import CaptureRequest
    from opguard_harness.report.progress import Progress
    from opguard_harness.report.short import short_answer
    from opguard_harness.workspace.demonstration import demonstrate

    capture = CaptureRequest(mode=mode, python=Path(python) if python else None)
    found = demonstrate(capture, Path(out) if out else None, Progress())
    if as_json:
        return Outcome(dumps(found.answer))
    return Outcome("\n".join([*short_answer(found.answer), f"The planted difference was found: {found.planted}"]))
