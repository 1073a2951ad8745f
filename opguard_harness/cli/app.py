"""The command table, and the dispatch that returns what a command wants printed instead of printing it."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from typer.main import get_command

from opguard_harness.cli import call, compare, demo, doctor, filters, help_pages, preflight, tools, trace
from opguard_harness.cli.outcome import Outcome

app = typer.Typer(
    name="opguard-harness",
    help="Find the first operator at which two trainings stop being bit-for-bit equal.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for name, command, text in (
    ("compare", compare.compare, compare.HELP),
    ("preflight", preflight.preflight, preflight.HELP),
    ("doctor", doctor.doctor, doctor.HELP),
    ("trace", trace.trace, trace.HELP),
    ("demo", demo.demo, demo.HELP),
    ("tools", tools.tools, tools.HELP),
    ("call", call.call, call.HELP),
    ("explain", help_pages.explain, help_pages.HELP),
):
    app.command(name, help=text)(command)
app.add_typer(filters.app, name="filters", help=filters.HELP)


@app.callback(invoke_without_command=True)
def root(context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> Outcome | None:
    """Print the version, or insist on a command."""
    if version:
        from opguard_core import __version__

        raise Answered(Outcome(f"opguard-mcp {__version__}"))
    if context.invoked_subcommand is None:
        raise Answered(Outcome(context.get_help(), failed=True))
    return None


class Answered(Exception):
    """Carries the outcome of an option that ends the command line."""

    def __init__(self, outcome: Outcome) -> None:
        """Keep the outcome."""
        super().__init__()
        self.outcome = outcome


def dispatch(words: Sequence[str]) -> Outcome:
    """Carry out one command line; usage errors and everything else are raised, nothing exits the process.

    The command's own ``main`` is passed by: it turns an interrupt into a return value and a broken pipe into exit code 1.
    """
    command = get_command(app)
    try:
        with command.make_context("opguard-harness", list(words)) as context:
            result = command.invoke(context)
    except Answered as answered:
        return answered.outcome
    except typer.Exit as done:  # `--help` has printed
        if done.exit_code == 0:
            return Outcome("")
        raise
    if not isinstance(result, Outcome):
        raise TypeError(f"a command returned {type(result).__name__} instead of an outcome")
    return result
