"""`call`: one tool, JSON in, JSON out. Standard output is always one JSON object."""

from __future__ import annotations

import json
import sys

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = "Call one tool with a JSON object of arguments ('-' reads it from standard input) and print its result as one JSON object."


def call(
    name: str = typer.Argument(..., metavar="NAME", help="A tool of `opguard-harness tools`."),
    arguments: str = typer.Argument("{}", metavar="JSON", help="Its arguments."),
    as_json: bool = typer.Option(True, "--json", hidden=True, help="Accepted for symmetry; the result is always JSON."),
) -> Outcome:
    """Check the arguments, run the tool, print its result."""
    from opguard_harness.config import ANSWER_LIMIT_CHARS
    from opguard_harness.errors import Internal, InvalidArguments
    from opguard_harness.registry import find
    from opguard_harness.tools.declaration import parse_arguments

    tool = find(name)
    try:
        given = json.loads(sys.stdin.read() if arguments == "-" else arguments)
    except (ValueError, RecursionError) as error:
        raise InvalidArguments(f"The arguments of {tool.name} are not JSON: {error}.") from error
    text = dumps(tool.run(parse_arguments(tool, given)))
    if len(text) > ANSWER_LIMIT_CHARS:
        raise Internal(f"The result of {tool.name} has {len(text)} characters; the limit is {ANSWER_LIMIT_CHARS}.")
    return Outcome(text)
