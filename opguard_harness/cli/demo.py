"""`demo`: a shipped pair, end to end."""

from __future__ import annotations

from pathlib import Path

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = "Compare a shipped pair of small trainings, of which one has a planted bug; exit code 0 when it was found."


def demo(
    example: str = typer.Argument("tiny_gpt", metavar="[EXAMPLE]", help="EXAMPLE or EXAMPLE/PAIR, see --list."),
    list_them: bool = typer.Option(False, "--list", help="Say which examples there are, and run nothing."),
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
    from opguard_harness.workspace.planted import find_pair, pairs

    if list_them:
        known = [{"example": pair.title, "what": pair.what, "needs": list(pair.needs)} for pair in pairs()]
        width = max(len(str(entry["example"])) for entry in known)
        return Outcome(dumps(known) if as_json else "\n".join(f"{entry['example']:{width}}  {entry['what']}" for entry in known))
    capture = CaptureRequest(mode=mode, python=Path(python) if python else None, attached=True)
    found = demonstrate(find_pair(example), capture, Path(out) if out else None, Progress())
    if as_json:
        return Outcome(dumps(found.answer))
    return Outcome("\n".join([*short_answer(found.answer), found.outcome]))
