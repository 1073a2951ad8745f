"""How many updates a rank has made, read from its trace while it grows.

Only what became durable counts (FORMAT.md, Groups), so the number trails the program by a commit: up to two seconds, a minute
in mode ``sentinel``. What cannot be read tells nothing here; that is for whoever judges the finished trace to say.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from opguard_core.errors import TraceFormatError
from opguard_core.ids import Kind
from opguard_core.trace.index import INDEX_NAME, MAX_LINE_BYTES, SegmentEntry
from opguard_core.trace.reader import read_segment

UPDATED = ("why=update", "why=skipped")  # what the state at the end of a whole window says of itself
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NON_BLOCK = getattr(os, "O_NONBLOCK", 0)


class GrowingRank:
    """Follows the trace of one rank.

    Args:
        folder: The rank's folder; it need not be there yet.
        steps: Half-open window of steps that is recorded, or None for all.
    """

    def __init__(self, folder: Path, steps: tuple[int, int] | None = None) -> None:
        self._folder = folder
        self._steps = steps
        self._offset = 0  # of the index, behind the last whole line
        self._unread: list[SegmentEntry] = []
        self._first: int | None = None if steps is None else steps[0]
        self._updates = 0

    def look(self) -> int:
        """Updates made so far, counted from the first one of this run or of the window.

        Cost: one status while nothing was committed; else the new lines of the index and its newest segment of events. Until
        the first update was seen, all of them.
        """
        try:
            self._unread += self._new_entries()
            while self._unread and self._first is None:
                self._take(self._unread.pop(0))
            if self._unread:
                newest = self._unread[-1]
                self._unread.clear()
                self._take(newest)
        except (TraceFormatError, OSError):
            self._unread.clear()
        return self.done

    @property
    def done(self) -> int:
        """As the last look found it."""
        if self._first is None:
            return 0
        last = self._updates if self._steps is None else min(self._updates, self._steps[1])
        return max(0, last - self._first)

    def _take(self, entry: SegmentEntry) -> None:
        """Read how far one segment of events goes."""
        table = read_segment(self._folder, entry)
        windows = table.column("window").to_numpy()
        ended = [int(windows[row]) for row in _ended(table)]
        if ended and self._first is None:
            self._first = ended[0]
        self._updates = max(self._updates, int(windows.max()), *(window + 1 for window in ended))

    def _new_entries(self) -> list[SegmentEntry]:
        """Segments of events that the index has gained since the last look."""
        path = self._folder / INDEX_NAME
        found = []
        descriptor = os.open(path, os.O_RDONLY | _NO_FOLLOW | _NON_BLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            if os.fstat(descriptor).st_size <= self._offset:
                return []
            stream.seek(self._offset)
            while (line := stream.readline(2 * MAX_LINE_BYTES)).endswith(b"\n"):
                self._offset += len(line)
                found += _events(line, path)
        return found


class Paced(NamedTuple):
    """What a rank's trace says of a step: mean seconds between the ends of two, and bytes on the disk for each step there was."""

    step_s: float
    step_bytes: int


def paced(folder: Path) -> Paced | None:
    """How fast a rank was that wrote a trace; None if that cannot be read, or it made fewer than two updates.

    Args:
        folder: The rank's folder.

    Cost: reads two segments of events, the first one and the last, and more only where these hold no end of a step.
    """
    try:
        entries = GrowingRank(folder)._new_entries()
        ends = [_first_of(folder, some, pick) for some, pick in ((entries, 0), (entries[::-1], -1))]
        num_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    except (TraceFormatError, OSError):
        return None
    if ends[0] is None or ends[1] is None or ends[1][0] <= ends[0][0]:
        return None
    steps = ends[1][0] - ends[0][0]
    return Paced((ends[1][1] - ends[0][1]) / 1e9 / steps, num_bytes // (steps + 1))


def _first_of(folder: Path, entries: list[SegmentEntry], pick: int) -> tuple[int, int] | None:
    """(step, host nanoseconds) of one end of a step in the first of some segments that has any."""
    for entry in entries:
        table = read_segment(folder, entry)
        if rows := _ended(table):
            return int(table.column("window")[rows[pick]].as_py()), int(table.column("t_host_ns")[rows[pick]].as_py())
    return None


def _ended(table: Any) -> list[int]:
    """Rows of a segment that are the state at the end of a whole window."""
    kinds, args = (table.column(name).chunk(0) for name in ("kind", "args"))
    names = kinds.dictionary.to_pylist()
    if Kind.STATE.value not in names:
        return []
    rows = (kinds.indices.to_numpy() == names.index(Kind.STATE.value)).nonzero()[0].tolist()
    return [row for row in rows if args[row].as_py() in UPDATED]


def _events(line: bytes, path: Path) -> list[SegmentEntry]:
    """The segment of events that one line of an index names, if it does.

    Raises:
        TraceFormatError: It names something that is no segment.
    """
    try:
        record = orjson.loads(line.partition(b" ")[2])
    except ValueError:
        return []
    segments = record.get("segments") if isinstance(record, dict) else None
    entries = [SegmentEntry.from_dict(entry, path) for entry in segments] if isinstance(segments, list) else []
    return [entry for entry in entries if entry.table == "events"]
