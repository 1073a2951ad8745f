"""`prune`: old results that nobody relies on, and their removal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import typer

from opguard_harness.answer.plain import dumps
from opguard_harness.cli.outcome import Outcome

if TYPE_CHECKING:
    from opguard_harness.pruning.removal import Pruned
    from opguard_harness.pruning.survey import Room

HELP = """Say which stored results nobody relies on and how much room they take; with --yes, remove them.

A result stays while it runs or is young, while a case notes or reports it, a finding of a case or a filter cites it, and while another
result that stays was made from it, or is just being made. While one of these cannot be read nothing is removed. Folders named with --out
are yours and are not looked at, nor are filter files and reports outside of the state folder.

Such as `opguard-harness prune` to see what would go and why the rest stays, then `opguard-harness prune --older-than 7 --yes` to remove
what is older than a week."""
_SHOWN = 20


def prune(
    older_than: float = typer.Option(30.0, metavar="DAYS", min=0.0, help="Only what nothing has happened to for so many days."),
    yes: bool = typer.Option(False, "--yes", help="Remove it; without this nothing is touched."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> Outcome:
    """Survey the state folder, and remove what may go if asked to."""
    from opguard_harness.pruning.removal import look
    from opguard_harness.pruning.removal import prune as remove
    from opguard_harness.report.progress import Progress
    from opguard_harness.tools.listing import known_jobs

    if not math.isfinite(older_than):
        raise typer.BadParameter("Days are a number.", param_hint="'--older-than'")
    progress = Progress()
    done = remove(known_jobs, older_than, progress.tick) if yes else look(known_jobs(), older_than)
    progress.done()
    text = dumps(_document(done)) if as_json else "\n".join(_page(done, yes))
    return Outcome(text, failed=bool(done.failed))


def _document(done: Pruned) -> dict[str, object]:
    rows = [{name: value for name, value in vars(room).items() if name != "paths"} for room in done.rooms]
    return {"schema": 1, "results": rows, "removed": done.removed, "failed": done.failed, "left_bytes": done.left_bytes}


def _page(done: Pruned, yes: bool) -> list[str]:
    from opguard_harness.report.escape import terminal

    gone = [room for room in done.going if room.id in done.removed] if yes else done.going
    lines = [_line(room, "removed" if yes else "would go") for room in gone[:_SHOWN]]
    lines += [f"and {len(gone) - _SHOWN} more"] if len(gone) > _SHOWN else []
    lines += [_line(room, f"stays: {room.why}") for room in done.staying[:_SHOWN]]
    lines += [f"and {len(done.staying) - _SHOWN} more stay"] if len(done.staying) > _SHOWN else []
    lines += [f"could not be removed: {terminal(said)}" for said in done.failed]
    size = sum(room.bytes for room in gone)
    told = f"{len(gone)} of {len(done.rooms)} results, {_mib(size)}" if gone or not done.left_bytes else ""
    left = f"{_mib(done.left_bytes)} that an earlier removal left" if done.left_bytes else ""
    both = " and ".join(part for part in (told, left) if part)
    return [*lines, f"removed {both}" if yes else f"{both} would go; --yes removes them" if gone or left else "nothing would go"]


def _line(room: Room, what: str) -> str:
    from opguard_harness.report.escape import terminal

    return f"{room.id}  {room.state}  {room.created[:10] or 'no date'}  {_mib(room.bytes)}  {terminal(what)}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
