"""Events that come as columns instead of rows: what the native observer hands to the writing thread.

The source keeps complete events in memory of its own and builds their columns without the interpreter lock; the writing thread
pulls (`TraceWriter.pull_from`). Frames, stacks, lifetimes and sources come as rows, whatever the events come as. A segment written
from columns holds the same bytes as one written from the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from opguard_core.trace.schema import EVENTS, SLOTS

Drained = tuple[Any, Any, int, int, tuple[int, int], list[tuple[int, int, str, str]]]
"""What a source hands over: events and slots as capsules ``arrow_array`` of Arrow's C data interface (None for no rows), bytes that
the source held for them, bytes of the columns, first and last ``seq`` covered, and losses inside as `Loss`."""


class Loss(NamedTuple):
    """Events that have no row: inclusive range of ``seq``, reason as in `drops.Drops`, error text or ""."""

    first_seq: int
    last_seq: int
    reason: str
    error: str = ""


class ColumnSource(Protocol):
    """Where the writing thread takes columns from; implemented by the native observer's outbox.

    Everything may be called while any thread emits; `wait` and `drain` let go of the interpreter lock.
    """

    @property
    def oldest_open(self) -> int:
        """Every event before this one is complete; digests of some may still be on their way."""

    @property
    def pressed(self) -> bool:
        """Whether an emitter waits, or drops, for lack of room."""

    def attach(self) -> None:
        """From now on emitters may wait for room: somebody drains."""

    def wait(self, timeout_s: float | None) -> None:
        """Wait until there is a chunk to write, a window has ended (see `committed`), room is short, or `wake` was called."""

    def wake(self) -> None:
        """End the present or the next `wait`. Never waits itself."""

    def drain(self, max_events: int) -> Drained | None:
        """The oldest events that may leave, None if there are none. Never waits."""

    def take_window_ended(self) -> bool:
        """Whether a window has ended since the last call."""

    def committed(self) -> None:
        """What was drained is committed: a window's end ends a `wait` again, which it need not since `take_window_ended` told of one."""

    def release(self, num_bytes: int) -> None:
        """This much of what was drained is no longer held (negative: more is)."""

    def give_up(self) -> None:
        """Wait for no device any more: digests that have not come are lost."""

    def shut(self) -> None:
        """Nobody drains any more: let nothing in, free whoever waits."""

    def abandon_in_child(self) -> None:
        """In a forked child: do nothing, own no lock of a vanished thread."""


@dataclass(frozen=True)
class ColumnBatch:
    """One run of events as columns.

    Attributes:
        events: pyarrow RecordBatch of `schema.EVENTS`, None if all of them are lost.
        slots: As ``events``, of `schema.SLOTS`; None if there are none.
        held_bytes: What the source held for them.
        column_bytes: What the columns take.
        first_seq: First event covered, with a row or lost.
        last_seq: Last event covered.
        lost: Those without a row.
    """

    events: Any
    slots: Any
    held_bytes: int
    column_bytes: int
    first_seq: int
    last_seq: int
    lost: tuple[Loss, ...] = ()

    @classmethod
    def of(cls, drained: Drained) -> ColumnBatch:
        """Take over what a source has drained.

        Raises:
            pyarrow.ArrowException, MemoryError: The columns cannot be taken over.

        Cost: about 0.2 ms whatever their length; no column is copied.
        """
        events, slots, held_bytes, column_bytes, (first, last), lost = drained
        return cls(
            None if events is None else pa.record_batch(_Exported(EVENTS, events)),
            None if slots is None else pa.record_batch(_Exported(SLOTS, slots)),
            held_bytes,
            column_bytes,
            first,
            last,
            tuple(Loss(*loss) for loss in lost),
        )


class _Exported:
    """One record batch on its way through Arrow's C data interface."""

    def __init__(self, schema: Any, array: Any) -> None:
        self._schema, self._array = schema, array

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        del requested_schema
        return self._schema.__arrow_c_schema__(), self._array
