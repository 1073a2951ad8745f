"""A source of columns that a test fills with rows: `trace.batch.ColumnSource` in a few lines of Python."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from opguard_core.trace.batch import Drained
from opguard_core.trace.codec import to_batch
from opguard_core.trace.schema import EventRow, SlotRow

EVENT_BYTES = 100


class RowSource:
    """Keeps events until they are drained.

    Attributes:
        late: Events from this number on wait for a device.
        held_bytes: What has been put and not released.
        gave_up: Whether the writer waits for no device any more.
        was_shut: Whether the writer has ended.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[EventRow, Sequence[SlotRow]] | tuple[int, str]] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._next_seq = 0
        self._window: int | None = None
        self._window_ended = False
        self.late: int | None = None
        self.held_bytes = 0
        self.pressed = self.gave_up = self.was_shut = False

    def put(self, event: EventRow, slots: Sequence[SlotRow]) -> None:
        """One complete event."""
        with self._lock:
            self._rows.append((event, slots))
            self._next_seq = event.seq + 1
            self.held_bytes += EVENT_BYTES

    def lose(self, seq: int, reason: str) -> None:
        """One event without a row."""
        with self._lock:
            self._rows.append((seq, reason))
            self._next_seq = seq + 1
            self.held_bytes += EVENT_BYTES

    @property
    def oldest_open(self) -> int:
        return self._next_seq

    def attach(self) -> None:
        pass

    def wait(self, timeout_s: float | None) -> None:
        self._wake.wait(timeout_s)
        self._wake.clear()

    def wake(self) -> None:
        self._wake.set()

    def drain(self, max_events: int) -> Drained | None:
        with self._lock:
            taken = self._rows[:max_events]
            if self.late is not None and not self.gave_up:
                taken = [row for row in taken if _seq(row) < self.late]
            self._rows = self._rows[len(taken) :]
        if not taken:
            return None
        events = [row[0] for row in taken if isinstance(row[0], EventRow)]
        slots = [slot for row in taken if isinstance(row[0], EventRow) for slot in row[1]]
        lost = [(row[0], row[0], row[1], "") for row in taken if not isinstance(row[0], EventRow)]
        for event in events:
            self._window_ended = self._window_ended or self._window not in (None, event.window)
            self._window = event.window
        span = (_seq(taken[0]), _seq(taken[-1]))
        return _capsule("events", events), _capsule("slots", slots), EVENT_BYTES * len(taken), 10 * len(taken), span, lost

    def take_window_ended(self) -> bool:
        ended, self._window_ended = self._window_ended, False
        return ended

    def committed(self) -> None:
        pass

    def release(self, num_bytes: int) -> None:
        with self._lock:
            self.held_bytes -= num_bytes

    def give_up(self) -> None:
        self.gave_up = True

    def shut(self) -> None:
        self.was_shut = True

    def abandon_in_child(self) -> None:
        pass


def _seq(row: Any) -> int:
    return row[0].seq if isinstance(row[0], EventRow) else row[0]


def _capsule(table: str, rows: list[Any]) -> Any:
    return to_batch(table, rows).__arrow_c_array__()[1] if rows else None
