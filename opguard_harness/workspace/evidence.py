"""Where evidence lies: from a reference to the stored trace, text or file that it names, among all that is stored.

A trace is found by its digest, so it may lie anywhere in the state folder; a comparison names traces that lie elsewhere. Two
traces that share the short digest of a reference, and are not copies of each other, are refused rather than chosen from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_core.errors import EvidenceNotFound, EvidenceStale, TraceFormatError
from opguard_core.evidence.refs import DIGEST_CHARS, URI, EventRef, JobRef, SourceRef
from opguard_core.ids import SIDES
from opguard_core.trace.files import read_checked
from opguard_core.trace.identity import trace_digest
from opguard_harness.access.opened import opened, without_sources
from opguard_harness.access.rules import current
from opguard_harness.access.traces import trace_folder
from opguard_harness.config import runs_dir, state_dir
from opguard_harness.errors import OutsideRoots, PathRefused
from opguard_harness.interface.declaration import Evidence
from opguard_harness.workspace.stored import ANSWER_FILE, MAX_ANSWER_BYTES, answer_of

if TYPE_CHECKING:
    from opguard_core.trace.reader import RankTrace, Run
    from opguard_core.trace.schema import EventRow, SlotRow

ARTEFACTS = {
    "answer": ANSWER_FILE,
    "result": "result.json",
    "log": "log.txt",
    "spec": "spec.json",
    "state": "state.json",
    "damage": "damage.json",
    "kept": "kept.json",
    "repro": "repro.py",
    "transplant": "transplant.json",
}
_OF_JOBS = frozenset({"result", "log", "spec", "state"})


@dataclass(frozen=True)
class Recorded:
    """One boundary as a trace holds it; ``number`` is that of its rank."""

    trace: Path
    run: Run
    number: int
    rank: RankTrace
    event: EventRow
    slots: list[SlotRow]


def evidence(reference: EventRef | SourceRef | JobRef, quote: str) -> Evidence:
    """The `evidence` entry of a result."""
    return Evidence(str(reference), f"{URI}{reference}", quote)


def digest_of(trace: Path) -> str:
    """Digest of a trace, computed again only when one of the files it is made of has changed.

    Raises:
        EvidenceNotFound: There is no such folder any more.
        TraceFormatError: It cannot be told.
    """
    try:
        return _digest(str(trace), _stamp(trace))
    except OSError as error:
        raise EvidenceNotFound(
            f"The trace {trace} is gone: {error.strerror}.", hint="Compare again; what it held can no longer be shown."
        ) from error


def trace_named(short: str, comparison: str = "") -> Path:
    """The one stored trace whose digest begins so.

    Args:
        short: The `trace` of an event's reference.
        comparison: A comparison whose sides alone are looked at; empty for all that is stored.

    Raises:
        EvidenceNotFound: There is none, or there are two.
        EvidenceStale: The comparison's trace was that one and has been changed.

    Cost: reads manifests and indexes of the traces it looks at, once per process.
    """
    found: dict[str, Path] = {}
    for trace in traces_of(comparison) if comparison else stored_traces():
        try:
            digest = digest_of(trace)
        except (EvidenceNotFound, TraceFormatError):
            continue
        if digest.startswith(short):
            found.setdefault(digest, trace)
    if len(found) > 1:
        raise EvidenceNotFound(f"ev:{short} begins the digests of {len(found)} stored traces.", hint="Name the comparison as well.")
    if found:
        return next(iter(found.values()))
    if comparison:
        _refuse_changed(short, comparison)
    where = f"a side of {comparison[:80]!r}" if comparison else "stored here, or it was changed since"
    raise EvidenceNotFound(
        f"No trace {short} is {where}.", hint="`list_runs` shows what is stored; take ids from a result about it, or compare again."
    )


def recorded(reference: EventRef, comparison: str = "") -> Recorded:
    """The boundary that a reference names.

    Raises:
        EvidenceNotFound: Trace, rank, event or part is not there.
        EvidenceStale: The trace was changed after it was written.
    """
    return recorded_in(trace_named(reference.trace, comparison), reference)


def recorded_in(trace: Path, reference: EventRef) -> Recorded:
    """As `recorded`, of a trace whose place is known."""
    from opguard_core.errors import CorruptSegment
    from opguard_core.trace.reader import Run

    try:
        run = Run.open(trace)
        rank = run.ranks.get(reference.rank)
        found = None if rank is None else rank.event_at(reference.seq)
    except CorruptSegment as error:
        raise EvidenceStale(f"The trace {trace} is not what was recorded: {error.message}") from error
    if rank is None or found is None:
        missing = f"has no rank {reference.rank}" if rank is None else f"records no event {reference.seq} of rank {reference.rank}"
        raise EvidenceNotFound(f"The trace {trace} {missing}.")
    return Recorded(trace, run, reference.rank, rank, *found)


def source_named(reference: SourceRef, comparison: str = "") -> tuple[Path, str]:
    """The stored text that a reference names.

    Returns:
        A trace that holds it, and its whole digest.

    Raises:
        EvidenceNotFound: There is none, or two texts share the short digest.
    """
    from opguard_core.trace.sources import SOURCES_NAME

    found: dict[str, Path] = {}
    looked_at = traces_of(comparison) if comparison else list(stored_traces())
    for trace in looked_at:
        for file in (trace / SOURCES_NAME).glob(f"{reference.digest}*.py*"):
            found.setdefault(file.name.split(".")[0], trace)
    if len(found) != 1:
        what = f"{len(found)} stored texts share" if found else "no stored text has"
        why = next((said for trace in looked_at if (said := without_sources(trace))), "") if not found else ""
        raise EvidenceNotFound(
            f"src:{reference.digest}: {what} that digest.{why}", hint="Take the id from a result, or name its comparison."
        )
    digest, trace = next(iter(found.items()))
    return trace, digest


def artefact(reference: JobRef) -> Path:
    """The file that a reference names, of a job, run or comparison in the state folder.

    Raises:
        EvidenceNotFound: No such thing was left.
    """
    name = ARTEFACTS.get(reference.artefact)
    folder = (state_dir() / "jobs" if reference.artefact in _OF_JOBS else runs_dir()) / reference.holder
    if reference.artefact in _OF_JOBS and not folder.exists():  # what an opened case brought with it
        folder = next(iter(sorted((state_dir() / "cases").glob(f"case-*/jobs/{reference.holder}"))), folder)
    if name is None:
        raise EvidenceNotFound(f"{reference}: there is no artefact {reference.artefact!r}.", hint=f"Known: {', '.join(ARTEFACTS)}.")
    path = folder / name
    if not path.is_file() or path.is_symlink() or folder.is_symlink():
        raise EvidenceNotFound(f"{reference} is not there: {reference.holder} is unknown, or has left no {reference.artefact}.")
    return path


def stored_traces() -> Iterator[Path]:
    """Every trace of the state folder, and those that its comparisons name, newest first; a trace may come twice."""
    if not runs_dir().is_dir():
        return
    for folder in sorted(runs_dir().iterdir(), reverse=True):
        if folder.name.startswith(".") or not folder.is_dir():
            continue
        yield from _allowed(_inside(folder))
        yield from _allowed(_named(folder / ANSWER_FILE))


def traces_of(comparison: str) -> list[Path]:
    """Traces of one comparison or run, named by id or path: those that its answer names, and all inside its folder.

    Raises:
        SideNotFound: There is no such thing.
    """
    from opguard_harness.workspace.stored import folder_of, trace_of

    folder = folder_of(comparison)
    if (folder / ANSWER_FILE).exists():
        return [*(Path(path) for path in answer_of(comparison)["trace"].values()), *_allowed(_inside(folder))]
    return [trace_of(comparison)]


def _allowed(traces: Iterator[Path]) -> Iterator[Path]:
    """Those that the call may touch; the others are as good as not there."""
    for trace in traces:
        try:
            yield current().path(trace, "trace")
        except (OutsideRoots, PathRefused):
            continue


def _inside(folder: Path) -> Iterator[Path]:
    """Traces that lie in a result folder: a run's, both sides', and those of its replays."""
    for place in (folder, *(folder / side for side in SIDES), *(replay / side for replay in folder.glob("replay-*") for side in SIDES)):
        trace = trace_folder(place) if place.is_dir() else None
        if trace is not None:
            yield trace


def _named(answer: Path) -> Iterator[Path]:
    """Traces that a stored answer names; of one that came out of a pack, where they lie here."""
    try:
        mark = opened(answer.parent)
        if mark is not None:
            yield from (mark.trace(side) for side in SIDES if side in mark.traces)
            return
        traces = json.loads(read_checked(answer, limit=MAX_ANSWER_BYTES))["trace"]
        yield from (Path(str(traces[side])) for side in SIDES)
    except (TraceFormatError, ValueError, LookupError, TypeError, RecursionError):
        return


def _refuse_changed(short: str, comparison: str) -> None:
    """Say so if a trace was what a reference names when the comparison was made, and is not any more."""
    from opguard_harness.workspace.stored import folder_of

    path = folder_of(comparison) / ANSWER_FILE
    answer: dict[str, Any] = answer_of(comparison) if path.exists() else {}
    for side, digest in answer.get("digests", {}).items():
        if str(digest).startswith(short):
            trace = Path(answer["trace"][side])
            if not trace.is_dir():
                raise EvidenceNotFound(f"The {side}'s trace {trace} of this comparison is gone.", hint="Compare again.")
            raise EvidenceStale(f"The {side}'s trace {trace} was changed after the comparison was made.")


def _stamp(trace: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Name, size, time and inode of all that the digest is made of."""
    found = []
    for folder in sorted(trace.iterdir()):
        if folder.name.startswith("rank-") and folder.is_dir():
            for file in (folder / "manifest.json", folder / "index.log"):
                if file.exists():
                    status = file.lstat()
                    found.append((str(file), status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(found)


@lru_cache(maxsize=4096)
def _digest(trace: str, stamp: tuple[tuple[str, int, int, int], ...]) -> str:
    return trace_digest(Path(trace))


__all__ = [
    "ARTEFACTS",
    "DIGEST_CHARS",
    "URI",
    "Recorded",
    "artefact",
    "digest_of",
    "evidence",
    "recorded",
    "recorded_in",
    "source_named",
    "stored_traces",
    "trace_named",
    "traces_of",
]
