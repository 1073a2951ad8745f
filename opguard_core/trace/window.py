"""One window of one rank in memory: columns for algorithms, lazy rows for people."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opguard_core.trace.columns import NO_NUMBER, Array, Columns, StringTables
from opguard_core.trace.schema import EVENTS, SLOTS, EventRow, SlotRow

_EVENT_TEXTS = frozenset(field.name for field in EVENTS if str(field.type).startswith("dictionary"))
_SLOT_TEXTS = frozenset(field.name for field in SLOTS if str(field.type).startswith("dictionary"))
_EVENT_NULLS = frozenset({"t_device_ns", "stream", "forward_seq", "stack", "user_frame", "library_frame"})
_SLOT_NULLS = frozenset({"storage", "version"})


@dataclass(frozen=True)
class WindowTable:
    """Events of one window (one value of the ``window`` column) and their slots, in order of ``seq``.

    Attributes:
        window: The window's number.
        events: Numpy columns of EVENTS by name, ``n`` long; types as `columns.to_columns` says. Also ``rng_before_known``.
        slots: Numpy columns of SLOTS by name.
        slot_start: int64[n + 1]: slots of event ``i`` are rows ``slot_start[i]:slot_start[i + 1]``.
        strings: Rank-wide tables that the code columns point into, by column name.
        dropped: Inclusive ranges of ``seq`` lost inside this window or between the one before and this one.
        whole: False for the last window of a torn trace: events are missing at its end.
    """

    window: int
    events: Columns
    slots: Columns
    slot_start: Array
    strings: StringTables
    dropped: tuple[tuple[int, int], ...] = ()
    whole: bool = True

    def __len__(self) -> int:
        return len(self.slot_start) - 1

    @property
    def num_slots(self) -> int:
        """Number of slot rows."""
        return int(self.slot_start[-1])

    def event(self, index: int) -> EventRow:
        """The row of event ``index`` of this window (not its ``seq``), built when asked for."""
        values = {}
        for name in EventRow._fields:
            value = self.events[name][index].item()
            if name in _EVENT_TEXTS:
                value = self.strings[name][value]
            elif (name in _EVENT_NULLS and value == NO_NUMBER) or (name == "rng_before" and not self.events["rng_before_known"][index]):
                value = None
            values[name] = value
        return EventRow(**values)

    def slot(self, row: int) -> SlotRow:
        """Slot row ``row`` of this window, built when asked for."""
        values = {}
        for name in SlotRow._fields:
            value = self.slots[name][row].item()
            if name in _SLOT_TEXTS:
                value = self.strings[name][value]
            elif name in _SLOT_NULLS and value == NO_NUMBER:
                value = None
            values[name] = value
        return SlotRow(**values)

    def slots_of(self, index: int) -> list[SlotRow]:
        """Slots of event ``index`` of this window, in the operator's argument order."""
        return [self.slot(row) for row in range(int(self.slot_start[index]), int(self.slot_start[index + 1]))]

    def index_of(self, seq: int) -> int | None:
        """Index in this window of the event numbered ``seq``, or None."""
        seqs = self.events["seq"]
        index = int(np.searchsorted(seqs, np.uint64(seq)))
        return index if index < len(seqs) and int(seqs[index]) == seq else None
