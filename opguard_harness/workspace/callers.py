"""The line of the program that called a place: source that an excerpt around the place does not show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_core.evidence.refs import SourceRef
from opguard_harness.workspace.executed import executed_source, user_files


def caller_of(pivot: dict[str, Any], side: str, traces: dict[str, str], rank: int, seen: int) -> SourceRef | None:
    """The innermost line of the program's own that is in the stack of a pivot and not near its place; None if there is none.

    Args:
        pivot: As in an answer.
        side: The side.
        traces: The trace of each side.
        rank: The side's rank.
        seen: Lines around the place that a reader knows.
    """
    place, frames = pivot[side], pivot["stack"][side] or []
    if place is None:
        return None
    own = user_files(Path(traces[side]), rank)
    for frame in reversed(frames):
        far = frame["file"] != place["file"] or abs(frame["line"] - place["line"]) > seen
        if not far or frame["file"] not in own:
            continue
        try:
            found = executed_source(Path(traces[side]), frame["file"])
        except OpGuardError:
            continue
        if 1 <= frame["line"] <= frame["end_line"] <= len(found.text.splitlines()):
            return SourceRef(found.digest, frame["file"], frame["line"], frame["end_line"])
    return None
