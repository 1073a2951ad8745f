"""Who last wrote each storage in earlier windows, so that a read can be followed back beyond its own window.

Bounded: only storages that outlive their window are kept, each with its latest writes; rows point into windows that can be
read again when asked for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from opguard_core.align.columns import Flags, Ints
from opguard_core.align.dataflow import Dataflow, Span, subtract
from opguard_core.trace.lookups import LifetimeTable

MAX_PAGES = 64
"""Windows kept one by one; older ones are joined."""

MAX_RECORDS = 16
"""Writes kept per storage of joined windows."""

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


class _Page(NamedTuple):
    """Last writes of one or more windows, by storage, then in order of time."""

    storage: Ints
    window: Ints
    row: Ints
    lo: Ints
    hi: Ints
    dense: Flags

    def of(self, storage: int) -> list[Write]:
        """Writes of one storage, oldest first."""
        start, end = np.searchsorted(self.storage, [storage, storage + 1]).tolist()
        return [
            Write(int(self.window[at]), int(self.row[at]), int(self.lo[at]), int(self.hi[at]), bool(self.dense[at]))
            for at in range(start, end)
        ]


class Ledger:
    """Latest writes of the storages of one side of one rank, over all windows seen so far."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self.lifetimes = lifetimes
        self._pages: list[_Page] = []

    def close(self, flow: Dataflow) -> None:
        """Take over what can still be seen of a window's writes.

        Cost: vectorised, but for storages that several writes of the window share.
        """
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
        alive = self.lifetimes.dead(storages[last]) > int(window.seq[-1])
        kept = [final[alive & whole]]
        kept += [np.array(flow.last_writes(storage)[::-1], np.int64) for storage in storages[last[alive & ~whole]].tolist()]
        chosen = np.concatenate(kept)
        chosen = chosen[np.argsort(window.storage[chosen], kind="stable")]
        self._pages.append(
            _Page(
                window.storage[chosen],
                np.full(len(chosen), window.number, np.int64),
                chosen,
                window.lo[chosen],
                window.hi[chosen],
                window.hi[chosen] - window.lo[chosen] == window.nbytes[chosen],
            )
        )
        if len(self._pages) > MAX_PAGES:
            self._compact(int(window.seq[-1]))

    def _compact(self, end: int) -> None:
        """Join the older half of the pages: storages that are still alive, the last `MAX_RECORDS` writes of each."""
        old, self._pages = self._pages[: MAX_PAGES // 2], self._pages[MAX_PAGES // 2 :]
        columns: list[Any] = [np.concatenate(parts) for parts in zip(*old, strict=True)]
        joined = _Page(*columns)
        order = np.argsort(joined.storage, kind="stable")
        storages = joined.storage[order]
        from_end = np.searchsorted(storages, storages, "right") - np.arange(len(storages))
        order = order[(from_end <= MAX_RECORDS) & (self.lifetimes.dead(storages) > end)]
        columns = [column[order] for column in joined]
        self._pages.insert(0, _Page(*columns))

    def writes(self, storage: int, missing: list[Span], before: int) -> tuple[list[Write], list[Span]]:
        """Writes of earlier windows that show in the missing spans, newest first, and what still nothing wrote.

        Args:
            storage: Serial of the storage.
            missing: Byte spans that the reading window itself did not write; [(0, 0)] asks for the last write at all.
            before: Number of the reading window.
        """
        found: list[Write] = []
        for page in reversed(self._pages):
            for write in reversed(page.of(storage)):
                if not missing:
                    return found, missing
                if write.window >= before:
                    continue
                if missing == [(0, 0)]:
                    return [write], []
                if any(write.lo < end and start < write.hi for start, end in missing):
                    found.append(write)
                    missing = subtract(missing, write.lo, write.hi) if write.dense else missing
        return found, missing

    def shows(self, storage: int, window: int, row: int) -> bool:
        """True if that write was not overwritten, forgotten or freed since; only asked when all windows are closed."""
        records = [write for page in self._pages for write in page.of(storage)]
        at = next((at for at, write in enumerate(records) if write.window == window and write.row == row), None)
        if at is None or int(self.lifetimes.dead(np.array([storage]))[0]) < _FOREVER:
            return False
        left: list[Span] = [(records[at].lo, records[at].hi)]
        for later in records[at + 1 :]:
            if later.dense:
                left = subtract(left, later.lo, later.hi)
        return bool(left)
