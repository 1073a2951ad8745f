"""Who last wrote each storage in earlier windows, so that a read can be followed back beyond its own window.

Bounded: only storages that outlive their window are kept, each with its latest writes; rows point into windows that can be
read again when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from opguard_core.align.columns import Flags, Ints
from opguard_core.align.dataflow import Dataflow, Span, subtract
from opguard_core.trace.lookups import LifetimeTable

MAX_RECORDS = 64
"""Writes kept per storage; the oldest half is forgotten when there are more."""

_FOREVER = np.iinfo(np.int64).max


class Write(NamedTuple):
    """One write that could still be seen when its window ended."""

    window: int
    row: int
    lo: int
    hi: int
    dense: bool


class Lifetimes:
    """When storages were born and found dead, for whole columns at once."""

    def __init__(self, table: LifetimeTable) -> None:
        self._storage = table.columns["storage"].astype(np.int64)
        self._born = table.columns["born_seq"].astype(np.int64)
        dead = table.columns["dead_seq"].astype(np.int64)
        self._dead = np.where(dead < 0, _FOREVER, dead)

    def dead(self, storages: Ints) -> Ints:
        """Event number at which each storage was found dead; the largest integer when alive at the end or unknown."""
        return self._look_up(storages, self._dead, _FOREVER)

    def born(self, storages: Ints) -> Ints:
        """Event number that first showed each storage; 0 when unknown."""
        return self._look_up(storages, self._born, 0)

    def _look_up(self, storages: Ints, column: Ints, default: int) -> Ints:
        if not len(self._storage):
            return np.full(len(storages), default, np.int64)
        at = np.searchsorted(self._storage, storages, "right") - 1  # of several rows the last one counts
        return np.where((at >= 0) & (self._storage[at] == storages), column[at], default)


class Ledger:
    """Latest writes of the storages of one side of one rank, over all windows seen so far."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self.lifetimes = lifetimes
        self._records: dict[int, list[Write]] = {}

    def close(self, flow: Dataflow) -> None:
        """Take over what can still be seen of a window's writes, and forget storages that died in it.

        Cost: vectorised, plus a little Python per surviving storage the window wrote.
        """
        window = flow.window
        if not len(window):
            return
        end = int(window.seq[-1])
        for storage, row in self._survivors(flow, end):
            rows = [row] if row >= 0 else flow.last_writes(storage)[::-1]
            records = self._records.setdefault(storage, [])
            for at in rows:
                lo, hi = int(window.lo[at]), int(window.hi[at])
                records.append(Write(window.number, at, lo, hi, bool(hi - lo == window.nbytes[at])))
            if len(records) > MAX_RECORDS:
                del records[: MAX_RECORDS // 2]
        known = np.fromiter(self._records, np.int64, len(self._records))
        for storage in known[self.lifetimes.dead(known) <= end].tolist():
            del self._records[storage]

    def _survivors(self, flow: Dataflow, end: int) -> Iterator[tuple[int, int]]:
        """Written storages that outlive the window, with the one row that overwrote all of it, or -1."""
        window = flow.window
        rows = flow.order[window.output[flow.order]]
        if not len(rows):
            return
        storages = window.storage[rows]
        last = np.append(np.flatnonzero(storages[1:] != storages[:-1]), len(rows) - 1)
        first = np.concatenate([[0], last[:-1] + 1])
        lo, hi = np.minimum.reduceat(window.lo[rows], first), np.maximum.reduceat(window.hi[rows], first)
        final = rows[last]
        whole: Flags = (window.lo[final] == lo) & (window.hi[final] == hi) & (hi - lo == window.nbytes[final])
        alive = self.lifetimes.dead(storages[last]) > end
        for storage, row, covers in zip(storages[last[alive]].tolist(), final[alive].tolist(), whole[alive].tolist(), strict=True):
            yield storage, row if covers else -1

    def writes(self, storage: int, missing: list[Span], before: int) -> tuple[list[Write], list[Span]]:
        """Writes of earlier windows that show in the missing spans, newest first, and what still nothing wrote.

        Args:
            storage: Serial of the storage.
            missing: Byte spans that the reading window itself did not write.
            before: Number of the reading window.
        """
        found = []
        for write in reversed(self._records.get(storage, [])):
            if not missing:
                break
            if write.window >= before or not any(write.lo < end and start < write.hi for start, end in missing):
                continue
            found.append(write)
            if write.dense:
                missing = subtract(missing, write.lo, write.hi)
        return found, missing

    def shows(self, storage: int, window: int, row: int) -> bool:
        """True if that write was not overwritten, forgotten or freed since; only asked when all windows are closed."""
        records = self._records.get(storage, [])
        at = next((at for at, write in enumerate(records) if write.window == window and write.row == row), None)
        if at is None:
            return False
        left: list[Span] = [(records[at].lo, records[at].hi)]
        for later in records[at + 1 :]:
            if later.dense:
                left = subtract(left, later.lo, later.hi)
        return bool(left)

    def __len__(self) -> int:
        """Number of storages kept."""
        return len(self._records)
