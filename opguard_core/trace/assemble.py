"""Cuts the rows of consecutive segments into windows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from opguard_core.errors import CorruptSegment
from opguard_core.trace.columns import Array, Columns, StringTables
from opguard_core.trace.problems import refusal
from opguard_core.trace.window import WindowTable

_Part = tuple[Columns, Columns, Array]


class WindowAssembler:
    """Takes groups of columns in order and gives whole windows back.

    Args:
        strings: Tables the code columns point into; passed on to each window.
        dropped: Sorted inclusive ranges of ``seq`` that were lost.
        first_seq: First number that is fed.
        window: Largest window number of the events before it.
    """

    def __init__(
        self, strings: StringTables, dropped: tuple[tuple[int, int], ...], *, first_seq: int = 0, window: int | None = None
    ) -> None:
        self._strings = strings
        self._dropped = dropped
        self._next_seq = first_seq
        self._window = window
        self._parts: list[_Part] = []
        self._reported_seq = first_seq  # losses below this were passed on with an earlier window

    def feed(self, events: Columns, slots: Columns, path: Path) -> Iterator[WindowTable]:
        """Add one group; yields the windows that it ends."""
        if not len(events["seq"]):
            return
        starts = self._check(events, slots, path)
        # A straggler keeps its own number in its row, but is never a window of its own.
        numbers = np.maximum.accumulate(events["window"].astype(np.int64))
        if self._window is not None:
            numbers = np.maximum(numbers, self._window)
        cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for lo, hi in itertools.pairwise(cuts):
            number = int(numbers[lo])
            if self._parts and number != self._window:
                yield self._take(whole=True)
            self._window = number
            slot_lo, slot_hi = int(starts[lo]), int(starts[hi])
            self._parts.append(
                (
                    {name: column[lo:hi] for name, column in events.items()},
                    {name: column[slot_lo:slot_hi] for name, column in slots.items()},
                    starts[lo : hi + 1] - slot_lo,
                )
            )

    def finish(self, *, whole: bool) -> Iterator[WindowTable]:
        """Yield the last window, if there is one."""
        if self._parts:
            yield self._take(whole=whole)

    def table_of(self, events: Columns, slots: Columns, path: Path) -> WindowTable:
        """One group as a single table, whatever windows it touches."""
        starts = self._check(events, slots, path)
        return WindowTable(int(events["window"][0]), events, slots, starts, self._strings)

    def _take(self, *, whole: bool) -> WindowTable:
        parts, self._parts = self._parts, []
        assert self._window is not None
        events = {name: _join([part[0][name] for part in parts]) for name in parts[0][0]}
        slots = {name: _join([part[1][name] for part in parts]) for name in parts[0][1]}
        starts = [parts[0][2]]
        for _, _, part_starts in parts[1:]:
            starts.append(part_starts[1:] + starts[-1][-1])
        last = int(events["seq"][-1])
        dropped = tuple(pair for pair in self._dropped if pair[1] >= self._reported_seq and pair[0] <= last)
        self._reported_seq = last + 1
        return WindowTable(self._window, events, slots, _join(starts), self._strings, dropped, whole)

    def _check(self, events: Columns, slots: Columns, path: Path) -> Array:
        """Check order and ownership; returns int64[n + 1], where the slots of each event begin."""
        seqs, owners = events["seq"].astype(np.int64), slots["seq"].astype(np.int64)
        steps = np.diff(seqs, prepend=self._next_seq - 1)
        if (steps < 1).any():
            raise refusal(
                CorruptSegment, "Event numbers not in order", path=path, expected="increasing", found=int(seqs[np.argmax(steps < 1)])
            )
        for jump in np.flatnonzero(steps > 1).tolist():
            hole = (int(seqs[jump] - steps[jump] + 1), int(seqs[jump]) - 1)
            if not any(first <= hole[0] and hole[1] <= last for first, last in self._dropped):
                raise refusal(
                    CorruptSegment, "Events missing without a record of it", path=path, expected="a recorded drop", found=f"seq {hole}"
                )
        starts = np.append(np.searchsorted(owners, seqs), len(owners)).astype(np.int64)
        if (np.diff(owners) < 0).any() or not np.array_equal(np.repeat(seqs, np.diff(starts)), owners):
            raise refusal(CorruptSegment, "Slots that belong to no event", path=path, expected="seq of an event", found="another")
        self._next_seq = int(seqs[-1]) + 1
        return starts


def _join(arrays: list[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
