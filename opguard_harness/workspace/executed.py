"""The source text that a run executed, looked up by the file name that places carry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opguard_core.errors import EvidenceNotFound


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
        for name, digest in _files(rank.frames):
            names.add(name)
            if name == file and digest:
                return Executed(digest, run.source(digest))
    from difflib import get_close_matches

    close = get_close_matches(file, sorted(names), n=3)
    hint = f"Close names: {', '.join(close)}." if close else "Use the `file` of a place as an answer gives it."
    raise EvidenceNotFound(f"The trace {trace} holds no source of {file[:200]!r}.", hint=hint)


def _files(frames: object) -> set[tuple[str, str]]:
    """Distinct (file, source digest) pairs of a frame table."""
    columns = frames.columns  # type: ignore[attr-defined]
    return set(zip(columns["file"].tolist(), columns["source"].tolist(), strict=True))
