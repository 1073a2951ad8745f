"""The windows of one rank pair over time: streamed in step, a few kept, any earlier one read again when asked for."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from opguard_core.align.aligned import Aligned, align
from opguard_core.align.columns import MARKER, STATE, Window
from opguard_core.align.dataflow import Dataflow
from opguard_core.align.ledger import Ledger, Lifetimes
from opguard_core.align.loading import RankColumns
from opguard_core.align.vocabulary import Vocabulary
from opguard_core.trace.reader import RankTrace
from opguard_core.trace.window import WindowTable

REFERENCE, SUSPECT = 0, 1
KEPT_WINDOWS = 3


class Row(NamedTuple):
    """One slot row of one side."""

    side: int
    window: int
    row: int


class Step(NamedTuple):
    """One window of a rank pair as the reader gave it; None where that side does not have it."""

    number: int
    reference: WindowTable | None
    suspect: WindowTable | None
    aligned: Aligned | None


class Timeline:
    """Aligned windows of one rank pair.

    Args:
        reference: Trace of the reference's rank.
        suspect: Trace of the suspect's rank.

    Attributes:
        resumed: Window at which each side goes on from an earlier run, None for a side that began at its first; known while
            steps are streamed.
    """

    def __init__(self, reference: RankTrace, suspect: RankTrace) -> None:
        self.resumed: list[int | None] = [None, None]
        vocabulary = Vocabulary()
        self.vocabulary = vocabulary
        self.columns = (RankColumns(reference, vocabulary), RankColumns(suspect, vocabulary))
        self.ledgers = (Ledger(Lifetimes(reference.lifetimes)), Ledger(Lifetimes(suspect.lifetimes)))
        self._kept: OrderedDict[int, Aligned] = OrderedDict()
        self._common: set[int] = set()

    def steps(self) -> Iterator[Step]:
        """Stream the windows of both sides in order of their number, aligned where both have one.

        The ledgers hold all earlier windows while a step is looked at, and take it over afterwards.

        Raises:
            TraceFormatError: A trace holds what it must not.

        Cost: one window of each side in memory (two at the beginning), and `KEPT_WINDOWS` aligned ones.
        """
        streams = [self._after_setup(side) for side in (REFERENCE, SUSPECT)]
        waiting = [next(stream, None) for stream in streams]
        while any(waiting):
            number = min(entry[0].window for entry in waiting if entry is not None)
            current = [entry if entry is not None and entry[0].window == number else None for entry in waiting]
            reference, suspect = current
            aligned = None
            if reference is not None and suspect is not None:
                aligned = align(reference[1], suspect[1])
                self._common.add(number)
                self._keep(number, aligned)
            yield Step(number, reference[0] if reference else None, suspect[0] if suspect else None, aligned)
            for side, entry in enumerate(current):
                if entry is not None:
                    flow = (aligned.reference, aligned.suspect)[side] if aligned is not None else Dataflow(entry[1])
                    self.ledgers[side].close(flow)
                    waiting[side] = next(streams[side], None)

    def _after_setup(self, side: int) -> Iterator[tuple[WindowTable, Window]]:
        """The windows of one side, without what a resumed run did before it knew at which step it goes on.

        That stands in window 0, where the other side may have its first step; window numbers are in a row but for that jump.
        """
        windows = self.columns[side].iter_windows()
        waiting = deque(islice(windows, 2))
        if len(waiting) == 2 and waiting[1][0].window > waiting[0][0].window + 1 and _is_setup(waiting[0][1]):
            self.ledgers[side].close(Dataflow(waiting.popleft()[1]))
            self.resumed[side] = waiting[0][0].window
        while waiting:  # not held any longer than the consumer holds them
            yield waiting.popleft()
        yield from windows

    def look(self, number: int) -> bool:
        """Open one window by itself, without the ones before it; says whether both sides have it.

        Raises:
            TraceFormatError: A trace holds what it must not.

        Cost: the segments it lies in, and its alignment.
        """
        tables = [columns.trace.window(number) for columns in self.columns]
        windows = [columns.translate(table) for columns, table in zip(self.columns, tables, strict=True) if table is not None]
        if len(windows) < len(tables):
            return False
        self._common.add(number)
        self._keep(number, align(windows[REFERENCE], windows[SUSPECT]))
        return True

    def is_common(self, number: int) -> bool:
        """Both sides have had that window."""
        return number in self._common

    def aligned(self, number: int) -> Aligned:
        """A window both sides have, from memory or read and aligned again."""
        if number in self._kept:
            self._kept.move_to_end(number)
        else:
            self._keep(number, align(*(columns.window(number) for columns in self.columns)))
        return self._kept[number]

    def _keep(self, number: int, aligned: Aligned) -> None:
        self._kept[number] = aligned
        while len(self._kept) > KEPT_WINDOWS:
            self._kept.popitem(last=False)

    def flow(self, side: int, number: int) -> Dataflow:
        """Dataflow of one side's window."""
        if not self.is_common(number):
            return Dataflow(self.columns[side].window(number))
        aligned = self.aligned(number)
        return aligned.suspect if side == SUSPECT else aligned.reference

    def producers(self, at: Row) -> tuple[list[Row], bool]:
        """Rows that wrote what a row reads, newest first, over all windows, and whether some of its bytes nothing wrote."""
        flow = self.flow(at.side, at.window)
        if flow.window.storage[at.row] < 0:
            return [], True
        rows, missing = flow.producers(at.row)
        earlier, missing = self.ledgers[at.side].writes(int(flow.window.storage[at.row]), missing, at.window)
        found = [Row(at.side, at.window, row) for row in rows]
        return found + [Row(at.side, write.window, write.row) for write in earlier], bool(missing)


def _is_setup(window: Window) -> bool:
    """Something was done there, and no state was recorded at its end."""
    return bool((window.kind != MARKER).any() and not (window.kind == STATE).any())
