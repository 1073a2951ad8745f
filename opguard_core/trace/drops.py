"""Exact account of events that were not kept, and why.

Pure Python, shared by the emitting threads (full buffer) and the writing thread (full disk).
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Drops:
    """What a rank lost.

    Attributes:
        events: Number of events lost.
        ranges: Their ``seq``, as sorted disjoint inclusive ranges.
        reasons: Events lost by reason: "buffer-full", "disk", "encode", "not-emitted", "writer-closed", "writer-died".
        other: Other things lost by kind: "source", "out-of-order" (its number was passed already), "manifest", and interned tables.
        errors: First few error texts.
    """

    events: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    reasons: dict[str, int] = field(default_factory=dict)
    other: dict[str, int] = field(default_factory=dict)
    errors: tuple[str, ...] = ()


def merge_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort inclusive integer ranges and join those that touch or overlap."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def complement(ranges: list[tuple[int, int]], stop: int) -> list[tuple[int, int]]:
    """Inclusive ranges of ``0..stop-1`` that none of the given ones covers."""
    holes = []
    expected = 0
    for first, last in merge_ranges(ranges):
        if first > expected and expected < stop:
            holes.append((expected, min(first, stop) - 1))
        expected = last + 1
    if expected < stop:
        holes.append((expected, stop - 1))
    return holes


class DropLedger:
    """Counts losses from any thread. Methods never raise.

    Args:
        lock: The lock of the queue. Sharing it means that whoever waits for the queue holds no lock of ours, even where a
            signal handler has interrupted one of these methods.
    """

    MAX_ERRORS = 8

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._ranges: list[tuple[int, int]] = []
        self._fresh: list[tuple[int, int]] = []
        self._reasons: Counter[str] = Counter()
        self._other: Counter[str] = Counter()
        self._errors: list[str] = []

    def lose(self, first: int, last: int, reason: str, error: str = "") -> None:
        """Record that no event of the inclusive range ``first..last`` is kept. Ranges never overlap."""
        with self._lock:
            self._reasons[reason] += last - first + 1
            for ranges in (self._ranges, self._fresh):
                if ranges and ranges[-1][1] + 1 == first:
                    ranges[-1] = (ranges[-1][0], last)
                else:
                    ranges.append((first, last))
            self._note(error)

    def lose_other(self, kind: str, error: str = "", count: int = 1) -> None:
        """Record the loss of something that has no ``seq`` of its own."""
        with self._lock:
            self._other[kind] += count
            self._note(error)

    def _note(self, error: str) -> None:
        if error and error not in self._errors and len(self._errors) < self.MAX_ERRORS:
            self._errors.append(error)

    def take_fresh(self) -> list[tuple[int, int]]:
        """Ranges lost since the last call that was not given back."""
        with self._lock:
            fresh, self._fresh = self._fresh, []
            return fresh

    def give_back(self, fresh: list[tuple[int, int]]) -> None:
        """Return ranges taken by `take_fresh` that could not be stored."""
        with self._lock:
            self._fresh = fresh + self._fresh

    def total(self) -> Drops:
        """Everything lost so far."""
        with self._lock:
            return Drops(
                events=sum(self._reasons.values()),
                ranges=tuple(merge_ranges(self._ranges)),
                reasons=dict(self._reasons),
                other=dict(self._other),
                errors=tuple(self._errors),
            )

    def reset_after_fork(self, lock: threading.RLock) -> None:
        """In a forked child: use another lock, the old one may be held by a thread that is not here."""
        self._lock = lock
