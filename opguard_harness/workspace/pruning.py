"""Give back the room that old results take which nobody relies on.

What goes is renamed first, so that whoever looks finds a result whole or not at all, and an interrupt leaves nothing that is
taken for one; what it leaves goes the next time. Standard library only.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from opguard_harness.compare.folders import held_bytes
from opguard_harness.config import private_dir, runs_dir, state_dir
from opguard_harness.workspace.documents import locked
from opguard_harness.workspace.listing import UNFINISHED, Entry, JobFacts, entries, meant_for
from opguard_harness.workspace.reliance import noted, resting

DAY_S = 86_400.0
_REMOVED = re.compile(r"\..+\.removed-[0-9a-f]{12}")


@dataclass(frozen=True)
class Room:
    """One stored result and the room it takes.

    Attributes:
        id: As `list_runs` shows it.
        kind: One of ``listing.KINDS``.
        state: One of ``listing.STATES``.
        created: UTC, ISO 8601; may be empty.
        bytes: Of all its files.
        why: Why it stays; empty if it may go.
        paths: Its folders.
    """

    id: str
    kind: str
    state: str
    created: str
    bytes: int
    why: str
    paths: tuple[Path, ...]


@dataclass
class Pruned:
    """What there is, and what became of it.

    Attributes:
        rooms: All that is stored, newest first.
        removed: Ids that are gone.
        failed: What could not be removed, and why.
        left_bytes: Room of what an earlier removal left half way.
    """

    rooms: list[Room]
    removed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    left_bytes: int = 0

    @property
    def going(self) -> list[Room]:
        """What may go, oldest first."""
        return [room for room in reversed(self.rooms) if not room.why]

    @property
    def staying(self) -> list[Room]:
        """What stays, newest first."""
        return [room for room in self.rooms if room.why]


def survey(jobs: Iterable[JobFacts], days: float) -> Pruned:
    """Say of each stored result whether it may go.

    Args:
        jobs: The jobs of the state folder.
        days: What is younger stays.

    Raises:
        CaseDamaged: Nobody can say what a case relies on.
        FiltersDamaged: The same of a filter file.

    Cost: a look at every file of the state folder's runs and jobs.
    """
    rows = entries(jobs)
    kept = noted() | {row.id: f"it is {row.state}" for row in rows if row.state in UNFINISHED}
    now_s = datetime.now(timezone.utc).timestamp()
    newest_s = now_s - days * DAY_S
    kept |= {row.id: "it was written to within a day" for row in rows if row.found == "lost" and _written_s(row.path) > now_s - DAY_S}
    paths = _paths(rows)
    kept = {row.id: f"it is younger than {days:g} days" for row in rows if _changed_s(row, paths[row.id]) > newest_s} | kept
    kept = resting(rows, kept)
    return Pruned(
        [_room(row, paths[row.id], kept.get(row.id, "")) for row in rows], left_bytes=sum(held_bytes(path) for path in _half_removed())
    )


def prune(jobs: Callable[[], Iterable[JobFacts]], days: float) -> Pruned:
    """Remove what may go.

    Args:
        jobs: Looks for the jobs of the state folder.
        days: As in `survey`.

    Raises:
        SystemRefused: Another process holds the lock under which jobs are started.

    Concurrent use: safe. No job is started between the look and the renaming.
    """
    private_dir(state_dir())
    with locked(private_dir(state_dir() / "jobs") / "jobs"):
        done = survey(jobs(), days)
        for room in done.going:
            try:
                for path in room.paths:
                    path.rename(path.with_name(f".{path.name.lstrip('.')}.removed-{secrets.token_hex(6)}"))
            except OSError as error:
                done.failed.append(f"{room.id}: {error.strerror}")
            else:
                done.removed.append(room.id)
    for path in list(_half_removed()):
        try:
            shutil.rmtree(path)
        except OSError as error:
            if path.exists():  # else another process was faster
                done.failed.append(f"{path}: {error.strerror}")
    return done


def _changed_s(row: Entry, paths: Iterable[Path]) -> float:
    """When something last happened to it, in seconds since 1970."""
    times = [row.created_s]
    for path in paths:
        with suppress(OSError):
            times.append(path.stat(follow_symlinks=False).st_mtime)
    return max(times)


def _written_s(path: Path | None) -> float:
    """When something below a folder was last written: its program may run on another machine, where nobody here can ask for it."""
    times = [0.0]
    for folder, _, names in os.walk(path) if path is not None else ():
        for name in (*names, "."):
            with suppress(OSError):
                times.append(Path(folder, name).lstat().st_mtime)
    return max(times)


def _room(row: Entry, paths: tuple[Path, ...], why: str) -> Room:
    return Room(row.id, row.kind, row.state, row.created, sum(held_bytes(path) for path in paths), why, paths)


def _paths(rows: Iterable[Entry]) -> dict[str, tuple[Path, ...]]:
    """Folders of each result: its own, its job's, and what a job that did not succeed has left."""
    left: dict[str, list[Path]] = {}
    for path in _folders(runs_dir()):
        left.setdefault(meant_for(path.name), []).append(path)
    found = {}
    for row in rows:
        own = [] if row.path is None else [row.path]
        if row.job is not None:
            folder = state_dir() / "jobs" / row.job.id
            own += [folder] if folder.is_dir() and not folder.is_symlink() else []
            own += left.get(row.job.id, [])
        found[row.id] = tuple(dict.fromkeys(own))
    return found


def _half_removed() -> Iterator[Path]:
    """What a removal has renamed and not finished."""
    for base in (runs_dir(), state_dir() / "jobs"):
        yield from (path for path in _folders(base) if _REMOVED.fullmatch(path.name))


def _folders(base: Path) -> Iterator[Path]:
    try:
        with os.scandir(base) as listed:
            yield from [base / item.name for item in listed if item.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
