"""`doctor`: is this machine ready."""

from __future__ import annotations

from pathlib import Path

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = "Check the training Python, the compiler, the disk and this installation; print the exact install line. Exit code 2 when not ready."


def doctor(
    python: str = typer.Option("", metavar="PATH", help="Training Python to check; without it, the one that compare would use."),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as one JSON object."),
) -> Outcome:
    """Run the checks and lay them out."""
    from opguard_harness.doctor.checks import examine
    from opguard_harness.report.escape import terminal

    report = examine(Path(python) if python else None)
    if as_json:
        return Outcome(
            dumps({"schema": 1, "ready": report.ready, "python": report.python, "checks": report.items}), failed=not report.ready
        )
    lines = [
        f"{item.level:<5} {item.name:<16} {terminal(item.found)}{' ' + terminal(item.fix) if item.fix else ''}" for item in report.items
    ]
    return Outcome("\n".join([*lines, "ready" if report.ready else "not ready"]), failed=not report.ready)
