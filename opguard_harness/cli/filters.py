"""`filters`: list benign filters, try them on a stored comparison, add and remove them."""

from __future__ import annotations

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = """List, try, add and remove benign filters: differences that somebody declared harmless.

They apply only to a comparison that names their file (`compare --filters FILE`). Without a command, lists them."""
FILE_HELP = "Filter file; by default the state folder's own."

app = typer.Typer(help=HELP, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    filters: str = typer.Option("", "--filters", metavar="FILE", help=FILE_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> Outcome | None:
    """List the filters when no command is given."""
    return listing(filters, as_json) if context.invoked_subcommand is None else None


@app.command("list", help="List the filters of a file, each with its reason and evidence.")
def listing(
    filters: str = typer.Option("", "--filters", metavar="FILE", help=FILE_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> Outcome:
    """Print a filter file."""
    from opguard_harness.report.filter_page import list_page
    from opguard_harness.workspace.filter_file import filter_path, read_filters

    path = filter_path(filters)
    found = [rule.as_dict() for rule in read_filters(path, required=bool(filters))]
    return Outcome(dumps({"schema": 1, "path": path, "filters": found}) if as_json else "\n".join(list_page(path, found)))


@app.command("add", help="Say what a filter would hide in the comparison that it comes from; with --apply, write it.")
def add(
    comparison: str = typer.Argument(..., metavar="COMPARISON", help="The comparison that shows the difference: an id or a folder."),
    evidence: list[str] = typer.Option(..., metavar="ID", help="Evidence of the boundary, such as suspect:0:57; one of each side at most."),
    slot: str = typer.Option(..., metavar="SLOT", help="The one slot that differs, such as out.1."),
    reason: str = typer.Option(..., metavar="TEXT", help="Why this difference is harmless."),
    author: str = typer.Option("", metavar="TEXT", help="Who says so."),
    filters: str = typer.Option("", "--filters", metavar="FILE", help=FILE_HELP),
    apply: bool = typer.Option(False, "--apply", help="Write the filter."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> Outcome:
    """Try one filter, and write it if asked to."""
    from opguard_harness.report.filter_page import preview_page
    from opguard_harness.tools.filters import AddBenignFilterArguments, outcome, try_filter

    given = AddBenignFilterArguments(comparison, list(evidence), slot, reason, author, filters=filters, apply=apply)
    trial = try_filter(given)
    found = trial.effect.as_dict()
    if as_json:
        return Outcome(dumps({"schema": 1, "applied": apply, "path": trial.path, "filter": trial.made.as_dict(), **found}))
    return Outcome("\n".join([outcome(trial, applied=apply), *preview_page(found)]))


@app.command("remove", help="Remove a filter.")
def remove(
    name: str = typer.Argument(..., metavar="ID", help="Its id, as `filters list` shows it."),
    filters: str = typer.Option("", "--filters", metavar="FILE", help=FILE_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> Outcome:
    """Take one filter out of a file."""
    from opguard_harness.report.escape import terminal
    from opguard_harness.workspace.filter_file import filter_path, remove_filter

    path = filter_path(filters)
    removed = remove_filter(path, name)
    if as_json:
        return Outcome(dumps({"schema": 1, "path": path, "removed": removed.as_dict()}))
    return Outcome(f"removed {removed.id} ({terminal(removed.reason)}) from {terminal(str(path))}")


@app.command("dry-run", help="Judge a stored comparison again without and with all filters of a file; nothing runs, nothing is written.")
def dry_run(
    comparison: str = typer.Argument(..., metavar="COMPARISON", help="An id or a result folder."),
    filters: str = typer.Option("", "--filters", metavar="FILE", help=FILE_HELP),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> Outcome:
    """Say what a file's filters do to a comparison."""
    from opguard_harness.report.filter_page import preview_page
    from opguard_harness.workspace.filter_file import filter_path, read_filters
    from opguard_harness.workspace.filter_preview import preview
    from opguard_harness.workspace.stored import answer_of

    path = filter_path(filters)
    found = preview(answer_of(comparison), read_filters(path, required=bool(filters))).as_dict()
    return Outcome(dumps({"schema": 1, "path": path, **found}) if as_json else "\n".join(preview_page(found)))
