"""Which stored results may go, how much room they take, and why the others stay. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from opguard_harness.compare.folders import held_bytes
from opguard_harness.config import runs_dir
from opguard_harness.jobs.folder import JobFolder, jobs_dir
from opguard_harness.jobs.standing import at_work, processes_of
from opguard_harness.pruning.holders import Holders
from opguard_harness.pruning.reliance import noted
from opguard_harness.pruning.resting import resting
from opguard_harness.workspace.cases import cases_dir, is_case
from opguard_harness.workspace.listing import UNFINISHED, Entry, JobFacts, entries, meant_for

DAY_S = 86_400.0
_ENDED_UNSAID = ("lost", "damaged", "cancelled")  # its programs may have outlived whoever started them


@dataclass(frozen=True)
class Room:
    """One stored result and the room it takes.

    Attributes:
        id: As `list_runs` shows it.
        kind: One of ``listing.KINDS``.
        state: One of ``listing.STATES``.
        created: UTC, ISO 8601; may be empty.
        bytes: Of all its files; 0 before it was measured.
        why: Why it stays; empty if it may go.
        paths: Its folders, its job's first: a result is whole without its job, not the other way round.
    """

    id: str
    kind: str
    state: str
    created: str
    bytes: int
    why: str
    paths: tuple[Path, ...]


def survey(jobs: Iterable[JobFacts], days: float, holders: Holders) -> list[Room]:
    """Say of each stored result whether it may go, newest first.

    Args:
        jobs: The jobs of the state folder.
        days: What is younger stays.
        holders: Where cited records lie.

    Raises:
        CaseDamaged: Nobody can say what a case relies on.
        FiltersDamaged: The same of a filter file.
        PruneRefused: The same of a result that stays.

    Cost: a look at every file of the state folder's runs and jobs.
    """
    return [measured(room) for room in rooms(jobs, days, holders)]


def rooms(jobs: Iterable[JobFacts], days: float, holders: Holders) -> list[Room]:
    """As `survey`, not measured."""
    rows = entries(jobs)
    paths = _paths(rows)
    kept = keeping(rows, paths, days, holders)
    return [Room(row.id, row.kind, row.state, row.created, 0, kept.get(row.id, ""), paths[row.id]) for row in rows]


def relied_on(jobs: Iterable[JobFacts], days: float, holders: Holders) -> dict[str, str]:
    """Ids that stay now, each with the reason; also of results that are not in their place any more."""
    rows = entries(jobs)
    return keeping(rows, _paths(rows), days, holders)


def keeping(rows: list[Entry], paths: Mapping[str, tuple[Path, ...]], days: float, holders: Holders) -> dict[str, str]:
    """Ids that stay, each with the reason: what is at work, what somebody relies on, what is young, and what these rest on."""
    now_s = datetime.now(timezone.utc).timestamp()
    kept = {row.id: why for row in rows if (why := _at_work(row, paths[row.id], now_s))}
    kept = noted(holders) | kept
    for row in rows:  # the case's note of a job may not have been written
        if row.id not in kept and row.job is not None and is_case(row.job.case) and os.path.lexists(cases_dir() / row.job.case):
            kept[row.id] = f"{row.job.case} started it"
    newest_s = now_s - days * DAY_S
    for row in rows:
        if row.id not in kept and _changed_s(row, paths[row.id]) > newest_s:
            kept[row.id] = f"it is younger than {days:g} days"
    return resting(rows, kept, holders)


def measured(room: Room) -> Room:
    """With the bytes of its files; what may not be looked at stays."""
    try:
        return replace(room, bytes=sum(held_bytes(path) for path in room.paths))
    except OSError as error:
        return replace(room, why=room.why or f"it may not be looked at: {error.strerror}")


def _at_work(row: Entry, paths: Iterable[Path], now_s: float) -> str:
    """Why something is, or may be, at work on a result; empty if nothing is."""
    if row.state in UNFINISHED or row.found == "running":
        return f"it is {row.state if row.state in UNFINISHED else 'running'}"
    if row.state not in _ENDED_UNSAID:
        return ""
    if row.job is not None and (jobs_dir() / row.job.id).is_dir():
        folder = JobFolder.of(row.job.id)
        if row.state == "damaged" and at_work(folder, {}):
            return "its supervisor is at work"
        if processes_of(row.job.id):
            return "its programs still run; `cancel_job` ends them"
    # Its program may run on another machine, where nobody here can ask for it.
    written_s = max((_written_s(path) for path in paths), default=0.0)
    return "it was written to within a day" if row.state != "cancelled" and written_s > now_s - DAY_S else ""


def _changed_s(row: Entry, paths: Iterable[Path]) -> float:
    """When something last happened to it, in seconds since 1970."""
    times = [row.created_s]
    for path in paths:
        with suppress(OSError):
            times.append(path.stat(follow_symlinks=False).st_mtime)
    return max(times)


def _written_s(path: Path) -> float:
    """When something below a folder was last written."""
    times = [0.0]
    for folder, _, names in os.walk(path):
        for name in (*names, "."):
            with suppress(OSError):
                times.append(Path(folder, name).lstat().st_mtime)
    return max(times)


def _paths(rows: Iterable[Entry]) -> dict[str, tuple[Path, ...]]:
    """Folders of each result: its job's, its own, and what a job that did not succeed has left."""
    left: dict[str, list[Path]] = {}
    for path in folders(runs_dir()):
        left.setdefault(meant_for(path.name), []).append(path)
    found = {}
    for row in rows:
        own = [] if row.path is None else [row.path]
        if row.job is not None:
            folder = jobs_dir() / row.job.id
            own = [*([folder] if folder.is_dir() and not folder.is_symlink() else []), *own, *left.get(row.job.id, [])]
        found[row.id] = tuple(dict.fromkeys(own))
    return found


def folders(base: Path) -> Iterator[Path]:
    """Folders in a folder, links left out; none if it is not there."""
    try:
        with os.scandir(base) as listed:
            yield from [base / item.name for item in listed if item.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
