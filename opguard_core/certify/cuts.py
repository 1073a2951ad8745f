"""Whether both sides make the same updates and cut them into steps at other places.

A step ends behind the optimizer that counts and those that follow it. Programs that step their optimizers in another order, or do
something between two of them, may be cut elsewhere though they compute the same: what stands in one step on one side stands in the
next one on the other. That shows in the updates that each step holds, and in that both sides have made the same ones again later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from opguard_core.align.columns import MARKER, Window
from opguard_core.align.timeline import REFERENCE, SUSPECT, Timeline
from opguard_core.certify.roots import Root
from opguard_core.ids import Marker, Origin
from opguard_core.trace.window import WindowTable

_BY_ITSELF = (Origin.ARGUMENT, Origin.OPERATOR, Origin.DTYPE)
_STEP = (Marker.OPTIMIZER_BEGIN.value, Marker.OPTIMIZER_END.value)


@dataclass
class Cuts:
    """The updates of both sides, step by step.

    Attributes:
        apart: Windows behind which one side had made updates that the other had not, as first and last; the last one may be open.
    """

    apart: list[tuple[int, int | None]] = field(default_factory=list)
    _ahead: Counter[str] = field(default_factory=Counter)

    def note(self, number: int, reference: WindowTable, suspect: WindowTable) -> None:
        """Take in a window that both sides have."""
        _take(self._ahead, REFERENCE, reference)
        _take(self._ahead, SUSPECT, suspect)
        is_open = bool(self.apart) and self.apart[-1][1] is None
        if any(self._ahead.values()) and not is_open:
            self.apart.append((number, None))
        elif is_open and not any(self._ahead.values()):
            self.apart[-1] = (self.apart[-1][0], number)

    def doubts(self, root: Root, timeline: Timeline, last: int) -> bool:
        """Whether a difference may be work that stands in another step on the other side.

        Sides that never make the same updates again have made other ones: that is a difference, and no matter of steps. Nor is what
        both have, of equal inputs, in the first step that is cut at another place: it begins alike.

        Args:
            root: The difference.
            timeline: Both traces.
            last: The last window that was noted.

        Cost: nothing, but where the sides are apart: then it reads the rest of both traces until they are not.
        """
        window, alike = root.node.window, root.node.is_pair and root.origin in _BY_ITSELF
        for first, end in self.apart:
            if (first < window or (first == window and not alike)) and (end is None or window <= end):
                return end is not None or self._meet_later(timeline, last)
        return False

    def _meet_later(self, timeline: Timeline, number: int) -> bool:
        """Whether both sides have made the same updates again at the end of a later window."""
        ahead = Counter(self._ahead)
        rest = [_after(columns.trace.iter_windows(), number) for columns in timeline.columns]
        heads = [next(tables, None) for tables in rest]
        while any(table is not None for table in heads):
            now = min(table.window for table in heads if table is not None)
            for side in (REFERENCE, SUSPECT):
                table = heads[side]
                if table is not None and table.window == now:
                    _take(ahead, side, table)
                    heads[side] = next(rest[side], None)
            if not any(ahead.values()):
                return True
        return False


def _take(ahead: Counter[str], side: int, table: WindowTable) -> None:
    """Count the updates that ended in a window, by the optimizer's class: those of the reference up, those of the suspect down.

    What a scaler left out is none.
    """
    ends = table.events["operator"] == table.strings["operator"].code(Marker.OPTIMIZER_END)
    for index in ends.nonzero()[0].tolist():
        ahead[table.event(index).args.partition(";")[0]] += 1 if side == REFERENCE else -1


def stands_nearby(timeline: Timeline, number: int, alone: Mapping[int, int]) -> bool:
    """Whether an event that one side alone has in a window is made by the other one in the window before or behind it.

    The same operator of the same values with the same result. One that reads nothing is made alike in every step, and what an
    optimizer does is counted as its update.

    Args:
        timeline: Both traces.
        number: The window.
        alone: The event, by its side.

    Cost: reads two windows.
    """
    ((side, event),) = alone.items()
    window = timeline.flow(side, number).window
    made, name = _values(window, event), window.operator[event]
    if not len(window.reads(event)) or _within_update(window, event):
        return False
    columns = timeline.columns[1 - side]
    for near in (number + 1, number - 1):
        table = columns.trace.window(near) if near >= 0 else None
        if table is None:
            continue
        other = columns.translate(table)
        for index in (other.operator == name).nonzero()[0].tolist():
            if _values(other, index) == made:
                return True
    return False


def _within_update(window: Window, event: int) -> bool:
    """Whether an optimizer's step has begun before an event and not ended."""
    marks = (window.operator_text(index) for index in (window.kind[:event] == MARKER).nonzero()[0][::-1].tolist())
    return next((mark for mark in marks if mark in _STEP), "") == _STEP[0]


def _values(window: Window, event: int) -> tuple[list[int], list[int]]:
    """Digests of what an event reads, and of what it makes."""
    return window.value[window.reads(event)].tolist(), window.value[window.outputs(event)].tolist()


def _after(tables: Iterator[WindowTable], number: int) -> Iterator[WindowTable]:
    return (table for table in tables if table.window > number)
