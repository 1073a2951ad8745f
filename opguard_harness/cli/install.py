"""`install`: tell a client about the server."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

HELP = """Show how a client is told about the MCP server, and with --write put it into the client's file.

Every other server and setting in that file stays; the file from before is kept in the state folder. Examples:

  opguard-harness install claude            what to put where, and nothing is written

  opguard-harness install claude --write    .mcp.json of this folder

  opguard-harness install cursor --write --scope user

  opguard-harness install cursor --remove"""


def install(
    client: str = typer.Argument(..., metavar="claude|cursor", help="The client."),
    write: bool = typer.Option(False, "--write", help="Put the entry into the client's file."),
    remove: bool = typer.Option(False, "--remove", help="Take the entry out of the client's file again."),
    scope: str = typer.Option("project", metavar="project|user", help="For this project, or for all projects of yours."),
    project: str = typer.Option(".", metavar="DIR", help="The project's folder."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> Outcome:
    """Show, write or remove the server's entry."""
    from opguard_core.errors import ConflictingOptions, DependencyMissing
    from opguard_harness.clients.entry import SERVER
    from opguard_harness.clients.found import find_launch
    from opguard_harness.clients.install import Change, put, take_out
    from opguard_harness.clients.known import SCOPES, add_line, file_of, find_client
    from opguard_harness.clients.page import described, lines
    from opguard_harness.errors import ClientConfigRefused, SideNotFound, UsageError

    known = find_client(client)
    if scope not in SCOPES:
        raise UsageError(f"There is no scope {scope!r}.", hint=f"Scopes: {', '.join(SCOPES)}.")
    if write and remove:
        raise ConflictingOptions("--write and --remove exclude each other.", hint="Leave one out.")
    folder = Path(project).absolute()
    if scope == "project" and not folder.is_dir():
        raise SideNotFound(f"{folder} is not a folder.", hint="Name the project's folder with --project.")
    found = find_launch(os.environ)
    launch = found.launch
    place = file_of(known, scope, folder if scope == "project" else Path.home())
    if place is None and (write or remove):
        line = add_line(scope, launch) if write else f"claude mcp remove --scope {scope} {SERVER}"
        raise ClientConfigRefused(f"{known.title} keeps its {scope} servers in a file that only it may write.", hint=f"Run: {line}")
    if write and not found.startable:
        raise DependencyMissing(found.note, hint="Install it with pip; in a checkout: pip install -e .")
    change = Change("shown", launch.entry(known.root))
    if place is not None and write:
        change = put(place[1], place[0], launch.entry(known.root))
    if place is not None and remove:
        change = take_out(place[1], place[0])
    notes = [found.note if not remove else "", known.after if change.state in ("added", "updated") else ""]
    page = described(known, scope, str(place[1]) if place else None, launch, change, [note for note in notes if note])
    return Outcome(dumps({"schema": 1, **page}) if as_json else "\n".join(lines(known, page)))
