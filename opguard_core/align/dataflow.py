"""Who wrote the bytes an operator reads, and who reads the bytes it wrote, inside one window of one side.

By storage and byte extent. A slot that does not fill its extent (a strided view) never counts as full cover, so what was
written before it stays visible. Rows are in program order, so a producer always has a smaller row than its reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from opguard_core.align.columns import Ints, Window

MAX_WRITES = 4096
"""Writes of one storage looked at for one read; beyond that the older ones are not told apart."""

MAX_ACCESSES = 1 << 17
"""Later accesses of one storage looked at for one write."""

Span = tuple[int, int]


@dataclass(eq=False)
class Dataflow:
    """Index of one window's slots by storage."""

    window: Window

    @cached_property
    def order(self) -> Ints:
        """Slot rows that have a storage, by storage, then in program order."""
        rows = np.flatnonzero(self.window.storage >= 0)
        return rows[np.argsort(self.window.storage[rows], kind="stable")]

    @cached_property
    def _sorted_storage(self) -> Ints:
        return self.window.storage[self.order]

    @cached_property
    def writer(self) -> Ints:
        """Per slot row: the last row before it that wrote the same storage in this window, in an earlier event; -1 if none.

        Ignores extents: exact for storages that are written as a whole, which is nearly all of them.
        """
        window, order = self.window, self.order
        writer = np.full(len(window.event), -1, np.int64)
        if not len(order):
            return writer
        place = np.arange(len(order))
        start = np.searchsorted(self._sorted_storage, self._sorted_storage)
        last = np.maximum.accumulate(np.where(window.written[order], place, -1))
        before = np.concatenate([[-1], last[:-1]])
        good = before >= start
        writer[order[good]] = order[before[good]]
        return writer

    def rows_of(self, storage: int) -> Ints:
        """Slot rows of one storage in program order."""
        start, end = np.searchsorted(self._sorted_storage, [storage, storage + 1])
        return self.order[start:end]

    def writes_before(self, row: int) -> Iterator[int]:
        """Output rows of the same storage from earlier events, newest first."""
        window = self.window
        rows = self.rows_of(int(window.storage[row]))
        event = window.event[row]
        rows = rows[: np.searchsorted(rows, row)]
        rows = rows[window.output[rows] & (window.event[rows] < event)]
        yield from rows[::-1][:MAX_WRITES].tolist()

    def producers(self, row: int) -> tuple[list[int], list[Span]]:
        """Output rows that wrote what ``row`` reads, newest first, and the byte spans nothing in this window wrote."""
        window = self.window
        if window.hi[row] == window.lo[row]:  # an empty slice: whoever wrote the storage decides what it could have held
            writer = next(self.writes_before(row), None)
            return ([], [(0, 0)]) if writer is None else ([writer], [])
        missing: list[Span] = [(int(window.lo[row]), int(window.hi[row]))]
        found = []
        for write in self.writes_before(row):
            if not missing:
                break
            lo, hi = int(window.lo[write]), int(window.hi[write])
            if any(lo < end and start < hi for start, end in missing):
                found.append(write)
                if is_dense(window, write):
                    missing = subtract(missing, lo, hi)
        return found, missing

    def consumers(self, row: int) -> Iterator[int]:
        """Read rows of later events that see bytes ``row`` wrote, until they are overwritten or the window ends."""
        window = self.window
        left: list[Span] = [(int(window.lo[row]), int(window.hi[row]))]
        rows = self.rows_of(int(window.storage[row]))
        later = rows[np.searchsorted(rows, row) + 1 :][:MAX_ACCESSES]
        overlaps = (window.lo[later] < window.hi[row]) & (window.hi[later] > window.lo[row]) & (window.event[later] != window.event[row])
        for access in later[overlaps].tolist():
            lo, hi = int(window.lo[access]), int(window.hi[access])
            if not any(lo < end and start < hi for start, end in left):
                continue
            if window.read[access]:
                yield access
            elif window.output[access] and is_dense(window, access):
                left = subtract(left, lo, hi)
                if not left:
                    return

    def last_writes(self, storage: int) -> list[int]:
        """Output rows whose bytes can still be seen in a storage when the window ends, newest first."""
        window = self.window
        rows = self.rows_of(storage)
        rows = rows[window.output[rows]][::-1][:MAX_WRITES]
        if not len(rows):
            return []
        missing: list[Span] = [(int(window.lo[rows].min()), int(window.hi[rows].max()))]
        found = []
        for write in rows.tolist():
            lo, hi = int(window.lo[write]), int(window.hi[write])
            if any(lo < end and start < hi for start, end in missing):
                found.append(write)
                if is_dense(window, write):
                    missing = subtract(missing, lo, hi)
            if not missing:
                break
        return found


def is_dense(window: Window, row: int) -> bool:
    """True if the slot covers every byte of its extent."""
    return bool(window.hi[row] - window.lo[row] == window.nbytes[row])


def covers(window: Window, row: int, lo: int, hi: int) -> bool:
    """True if the slot covers every byte of lo:hi of its storage."""
    return bool(window.lo[row] <= lo and window.hi[row] >= hi and is_dense(window, row))


def subtract(spans: list[Span], lo: int, hi: int) -> list[Span]:
    """Spans without the bytes lo:hi."""
    return [piece for start, end in spans for piece in ((start, min(end, lo)), (max(start, hi), end)) if piece[0] < piece[1]]
