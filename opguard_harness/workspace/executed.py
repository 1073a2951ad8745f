"""The source text that a run executed, looked up by the file name that places carry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opguard_core.errors import EvidenceNotFound, TraceFormatError
from opguard_harness.access.opened import without_sources

if TYPE_CHECKING:
    from opguard_core.trace.reader import Run


@dataclass(frozen=True)
class Executed:
    """Text of one file and the digest it is stored under."""

    digest: str
    text: str


def executed_source(trace: Path, file: str) -> Executed:
    """Find a file's text in a trace.

    Args:
        trace: A run's trace directory.
        file: The file as a place names it.

    Raises:
        EvidenceNotFound: No frame of any rank names that file, or its text was not kept.
        TraceFormatError: The trace cannot be read.
    """
    from opguard_core.trace.reader import Run

    run = Run.open(trace)
    names: set[str] = set()
    for rank in run.ranks.values():
        for name, digest in files_of(rank.frames):
            names.add(name)
            if name == file and digest:
                return Executed(digest, _text(run, trace, digest))
    from difflib import get_close_matches

    close = get_close_matches(file, sorted(names), n=3)
    hint = f"Close names: {', '.join(close)}." if close else "Use the `file` of a place as an answer gives it."
    raise EvidenceNotFound(f"The trace {trace} holds no source of {file[:200]!r}.", hint=hint)


def _text(run: Run, trace: Path, digest: str) -> str:
    try:
        return run.source(digest)
    except TraceFormatError as error:
        why = without_sources(trace)
        if why:
            raise EvidenceNotFound(f"The trace {trace} has places, and no texts.{why}") from error
        raise


def files_of(frames: object) -> set[tuple[str, str]]:
    """Distinct (file, source digest) pairs of a frame table."""
    columns = frames.columns  # type: ignore[attr-defined]
    return set(zip(columns["file"].tolist(), columns["source"].tolist(), strict=True))


def user_files(trace: Path, rank: int) -> frozenset[str]:
    """Files of one rank that are the program's own, as places name them; empty where the trace cannot be read."""
    from opguard_core.errors import TraceFormatError
    from opguard_core.trace.reader import Run

    try:
        frames = Run.open(trace).ranks[rank].frames
    except (TraceFormatError, LookupError):
        return frozenset()
    names = frames.strings["category"]
    return frozenset(
        file
        for file, category in zip(frames.columns["file"].tolist(), frames.columns["category"].tolist(), strict=True)
        if names[category] == "user"
    )
