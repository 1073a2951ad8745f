"""What one rank of one side did in some steps, as a timeline shows it: boundaries with their clock, place, slots and step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.steps import Steps
from opguard_core.certify.places import Places
from opguard_core.evidence.refs import EventRef
from opguard_core.ids import Direction, Kind
from opguard_core.trace.reader import RankTrace
from opguard_core.trace.schema import EventRow, SlotRow
from opguard_core.trace.window import WindowTable
from opguard_harness.access.untrusted import one_line

SLOTS_SHOWN = 8
TEXT_CHARS = 160
_SHOWN = (Kind.OPERATOR, Kind.COLLECTIVE, Kind.READ)
_KNOWN = ("probed", "carried")
_LATEST_NS = 1 << 62  # a clock beyond this is none


@dataclass
class Lane:
    """Boundaries of one rank of one side, in the order in which they began.

    Attributes:
        rank: The rank.
        trace: Its trace.
        digest: Of the side's trace.
        seqs: Event numbers.
        steps: Step of each.
        total: How many there were before some were left out.
    """

    rank: int
    trace: RankTrace
    digest: str
    seqs: NDArray[np.int64]
    steps: NDArray[np.int64]
    total: int
    _at: list[tuple[WindowTable, int]] = field(default_factory=list)
    _places: Places | None = None
    _known: dict[tuple[int, int, int], str] = field(default_factory=dict)

    def rows(self) -> list[EventRow]:
        """The boundaries."""
        return [table.event(index) for table, index in self._at]

    def arguments(self, index: int, event: EventRow, results: str) -> dict[str, Any]:
        """What a click on a boundary shows; texts of the run are one line, redacted and bounded."""
        table, row = self._at[index]
        slots = table.slots_of(row)
        if len(slots) > SLOTS_SHOWN:
            slots = sorted(slots, key=lambda slot: slot.direction == Direction.IN)  # what it wrote says how it compares
        told: dict[str, Any] = {
            "operator": one_line(event.operator, TEXT_CHARS),
            "compared": results,
            "place": self._place(event),
            "step": int(self.steps[index]),
            "phase": one_line(event.phase, TEXT_CHARS),
            "microbatch": event.microbatch,
            "module": one_line(event.module, TEXT_CHARS),
            "node": one_line(event.node, TEXT_CHARS),
            "arguments": one_line(event.args, TEXT_CHARS),
            "event": event.seq,
            "evidence": str(EventRef(self.digest, self.rank, event.seq)),
            "slots": {one_line(slot.slot, 60): _slot(slot) for slot in slots[:SLOTS_SHOWN]},
        }
        if len(slots) > SLOTS_SHOWN:
            told["more slots"] = len(slots) - SLOTS_SHOWN
        return {name: value for name, value in told.items() if value not in ("", {})}

    def _place(self, event: EventRow) -> str:
        numbers = (
            -1 if event.stack is None else event.stack,
            -1 if event.user_frame is None else event.user_frame,
            -1 if event.library_frame is None else event.library_frame,
        )
        if numbers not in self._known:
            self._places = self._places or Places(self.trace, frozenset())
            frame = self._places.frame(*numbers)
            said = "" if frame is None else one_line(f"{frame.file}:{frame.line} {frame.function}: {frame.text}", TEXT_CHARS)
            self._known[numbers] = said
        return self._known[numbers]


def lane(trace: RankTrace, rank: int, digest: str, steps: tuple[int, int], around: int | None, most: int) -> Lane:
    """Boundaries of some steps.

    Args:
        trace: The rank's trace.
        rank: Its number.
        digest: Of the side's trace.
        steps: First step, and the one after the last.
        around: Event to keep if not all fit; None keeps the beginning.
        most: Boundaries to keep.

    Raises:
        TraceFormatError: The trace cannot be read.

    Cost: the trace up to the end of those steps.
    """
    found: list[tuple[WindowTable, int]] = []
    for number in range(steps[0], steps[1] + 1):  # an update's window also holds what the loop does behind it
        table = trace.window(number)
        if table is not None:
            kinds = table.strings["kind"]
            codes = [code for code in range(len(kinds)) if kinds[code] in _SHOWN]
            found += [(table, int(index)) for index in np.flatnonzero(np.isin(table.events["kind"], codes))]
    keys = [(table.window, int(table.events["seq"][index])) for table, index in found]
    told = Steps(trace).of(keys)
    kept = [at for at, key in enumerate(keys) if steps[0] <= told[key] < steps[1]]
    total = len(kept)
    if total > most:
        centre = next((place for place, at in enumerate(kept) if around is not None and keys[at][1] >= around), 0)
        first = max(0, min(centre - most // 2, total - most))
        kept = kept[first : first + most]
    return Lane(
        rank,
        trace,
        digest,
        np.array([keys[at][1] for at in kept], np.int64),
        np.array([told[keys[at]] for at in kept], np.int64),
        total,
        [found[at] for at in kept],
    )


def clock(rows: list[EventRow]) -> list[tuple[int, int]]:
    """Begin and end of each boundary of one track, from 0 upwards, never overlapping.

    A trace says when a boundary began; it is drawn until the next one of its track begins.
    """
    found: list[tuple[int, int]] = []
    last = 0
    for at, event in enumerate(rows):
        begin = max(last, _sound(event.t_host_ns))
        following = _sound(rows[at + 1].t_host_ns) if at + 1 < len(rows) else begin + 1
        last = max(begin + 1, following)
        found.append((begin, last))
    return found


def _sound(time_ns: int) -> int:
    return min(max(time_ns, 0), _LATEST_NS)


def _slot(slot: SlotRow) -> str:
    digest = f" mix64 {slot.mix64:016x}" if slot.status in _KNOWN else ""
    name = f" {slot.name}" if slot.name else ""
    return one_line(f"{slot.dtype}[{slot.shape}] {slot.nbytes} bytes {slot.status}{digest}{name}", TEXT_CHARS)
