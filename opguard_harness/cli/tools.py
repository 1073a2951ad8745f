"""`tools`: the tool list, as people and as programs read it."""

from __future__ import annotations

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = "List the tools that `call` takes; with --json their argument and result schemas."


def tools(as_json: bool = typer.Option(False, "--json", help="Print the declarations as one JSON object.")) -> Outcome:
    """Print the registry."""
    from opguard_harness.interface.schemas import describe
    from opguard_harness.registry import TOOLS

    if as_json:
        return Outcome(dumps({"schema": 1, "tools": [describe(tool) for tool in TOOLS]}))
    return Outcome("\n".join(f"{tool.name:<20} {tool.headline}" for tool in TOOLS))
