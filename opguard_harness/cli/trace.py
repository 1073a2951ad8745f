"""`trace`: what is inside a trace directory."""

from __future__ import annotations

from pathlib import Path

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = "Say what a trace directory holds: run facts, ranks, boundaries by kind, coverage gaps, size."


def trace(
    folder: str = typer.Argument(..., metavar="DIR", help="A trace directory, or a result folder of one side."),
    as_json: bool = typer.Option(False, "--json", help="Print everything as one JSON object."),
) -> Outcome:
    """Count a trace and lay the counts out."""
    from opguard_harness.report.trace_page import trace_page
    from opguard_harness.workspace.contents import contents
    from opguard_harness.workspace.stored import trace_of

    found = contents(trace_of(folder if "/" in folder else str(Path(folder).absolute()) if Path(folder).exists() else folder))
    return Outcome(dumps({"schema": 1, **found}) if as_json else "\n".join(trace_page(found)))
