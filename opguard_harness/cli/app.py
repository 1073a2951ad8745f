"""The command table, and the dispatch that returns what a command wants printed instead of printing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import typer
from typer.main import get_command

from opguard_harness.cli import (
    call,
    compare,
    demo,
    doctor,
    filters,
    help_pages,
    install,
    mcp,
    pack,
    preflight,
    prune,
    report,
    repro,
    timeline,
    tools,
    trace,
)
from opguard_harness.cli.outcome import Outcome

_COMMANDS: dict[str, tuple[Callable[..., Outcome], str]] = {
    "compare": (compare.compare, compare.HELP),
    "preflight": (preflight.preflight, preflight.HELP),
    "doctor": (doctor.doctor, doctor.HELP),
    "trace": (trace.trace, trace.HELP),
    "timeline": (timeline.timeline, timeline.HELP),
    "pack": (pack.pack, pack.PACK_HELP),
    "open": (pack.open_, pack.OPEN_HELP),
    "report": (report.report, report.HELP),
    "repro": (repro.repro, repro.HELP),
    "prune": (prune.prune, prune.HELP),
    "demo": (demo.demo, demo.HELP),
    "tools": (tools.tools, tools.HELP),
    "call": (call.call, call.HELP),
    "mcp": (mcp.mcp, mcp.HELP),
    "install": (install.install, install.HELP),
    "explain": (help_pages.explain, help_pages.HELP),
}


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


def _app(names: Iterable[str]) -> typer.Typer:
    """The program with these commands."""
    made = typer.Typer(
        name="opguard-harness",
        help="Find the first operator at which two trainings stop being bit-for-bit equal.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    for name in names:
        command, text = _COMMANDS[name]
        made.command(name, help=text)(command)
    made.callback(invoke_without_command=True)(root)
    return made


app = _app(_COMMANDS)
app.add_typer(filters.app, name="filters", help=filters.HELP)


def dispatch(words: Sequence[str]) -> Outcome:
    """Carry out one command line; usage errors and everything else are raised, nothing exits the process.

    The command's own ``main`` is passed by: it turns an interrupt into a return value and a broken pipe into exit code 1.
    """
    first = words[0] if words else ""
    command = get_command(_app([first]) if first in _COMMANDS else app)  # making all commands takes longer than a short tool
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
