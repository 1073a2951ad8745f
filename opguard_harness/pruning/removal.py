"""Remove what may go.

What goes is renamed first, so that whoever looks finds a result whole or not at all, and an interrupt leaves nothing that is
taken for one; what it leaves goes the next time. Standard library only.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from opguard_harness.compare.folders import held_bytes
from opguard_harness.config import private_dir, runs_dir, state_dir
from opguard_harness.jobs.folder import jobs_dir
from opguard_harness.pruning.holders import Holders
from opguard_harness.pruning.survey import Room, folders, relied_on, rooms, survey
from opguard_harness.workspace.documents import locked
from opguard_harness.workspace.listing import JobFacts

_REMOVED = re.compile(r"\..+\.removed-[0-9a-f]{12}")
_Moved = list[tuple[Path, Path]]


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


def look(jobs: Iterable[JobFacts], days: float, holders: Holders | None = None) -> Pruned:
    """Say what would go; as `survey`, with what an earlier removal left."""
    return Pruned(survey(jobs, days, holders or Holders()), left_bytes=sum(map(_held, _half_removed())))


def prune(jobs: Callable[[], Iterable[JobFacts]], days: float, say: Callable[[str], None] = lambda text: None) -> Pruned:
    """Remove what may go.

    Args:
        jobs: Looks for the jobs of the state folder.
        days: As in `survey`.
        say: Told what is being removed.

    Raises:
        SystemRefused: Another process removes results, or holds the lock under which jobs are started.
        CaseDamaged, FiltersDamaged, PruneRefused: As `survey`; nothing was removed.

    Concurrent use: safe. No job is started between the look and the renaming; what somebody relies on when that is done is put back.
    """
    with locked(private_dir(state_dir()) / "prune"):
        holders = Holders()
        left = list(_half_removed())
        done = look(jobs(), days, holders)  # measures, which may take its time; nobody waits for it
        with locked(private_dir(jobs_dir()) / "jobs"):
            again = {room.id: room for room in rooms(jobs(), days, holders)}
            done.rooms = [replace(room, why=room.why or again[room.id].why) for room in done.rooms if room.id in again]
            moved = _set_aside((again[room.id] for room in done.going), done.failed)
        while relied := {name: why for name, why in relied_on(jobs(), days, holders).items() if name in moved}:
            for name in relied:
                _put_back(moved.pop(name))
            done.rooms = [replace(room, why=relied.get(room.id, room.why)) for room in done.rooms]
        for number, (name, pairs) in enumerate(moved.items(), 1):
            say(f"removing {number} of {len(moved)}: {name}")
            gone = [_remove(path, name, done.failed) for _, path in pairs]
            if all(gone):
                done.removed.append(name)
        for path in left:
            _remove(path, str(path), done.failed)
    return done


def _set_aside(going: Iterable[Room], failed: list[str]) -> dict[str, _Moved]:
    """Rename what goes: of each result everything or nothing. By id, the old and the new name of each folder."""
    moved: dict[str, _Moved] = {}
    for room in going:
        pairs: _Moved = []
        try:
            for path in room.paths:
                target = path.with_name(f".{path.name.lstrip('.')}.removed-{secrets.token_hex(6)}")
                path.rename(target)
                pairs.append((path, target))
        except OSError as error:
            failed.append(f"{room.id}: {error.strerror}")
            _put_back(pairs)
        else:
            moved[room.id] = pairs
    return moved


def _put_back(pairs: _Moved) -> None:
    for path, target in reversed(pairs):
        target.rename(path)


def _remove(path: Path, name: str, failed: list[str]) -> bool:
    """Remove a folder; what cannot be is said, and stays under the name that the next removal looks for."""
    try:
        shutil.rmtree(path)
    except (OSError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else "its folders are nested too deeply"
        failed.append(f"{name}: {said}; what is left of it: {path}")
        return False
    return True


def _held(path: Path) -> int:
    try:
        return held_bytes(path)
    except OSError:
        return 0  # its removal will say so


def _half_removed() -> Iterator[Path]:
    """What a removal has renamed and not finished."""
    for base in (runs_dir(), jobs_dir()):
        yield from (path for path in folders(base) if _REMOVED.fullmatch(path.name))
