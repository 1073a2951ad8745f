"""`call`: one tool, JSON in, JSON out. Standard output is always one JSON object, the one that the MCP server gives."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = """Call one tool with a JSON object of arguments ('-' reads it from standard input) and print its result as one JSON object.

Long work is a job: the call answers at once, and `get_job` waits for it. Example: opguard-harness call list_runs '{"limit": 5}'"""


def call(
    name: str = typer.Argument(..., metavar="NAME", help="A tool of `opguard-harness tools`."),
    arguments: str = typer.Argument("{}", metavar="JSON", help="Its arguments."),
    root: list[str] = typer.Option(
        [], metavar="DIR", help="Touch only what lies in these folders; without, your own rights are the limit."
    ),
    as_json: bool = typer.Option(True, "--json", hidden=True, help="Accepted for symmetry; the result is always JSON."),
) -> Outcome:
    """Check the arguments, run the tool, print its result."""
    import anyio

    from opguard_harness.access.rules import Access
    from opguard_harness.errors import InvalidArguments
    from opguard_harness.invoke import invoke
    from opguard_harness.registry import find

    tool = find(name)
    try:
        given = json.loads(sys.stdin.read() if arguments == "-" else arguments)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"The arguments of {tool.name} are not JSON: {error}.") from error
    access = Access(roots=tuple(Path(folder).resolve() for folder in root) or None)
    return Outcome(dumps(anyio.run(partial(invoke, name, given, access))))
