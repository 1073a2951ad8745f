"""Values told to Python that only their place pairs: a program that prints another quantity than the other one may compute the same.

What a program does with a number that it reads shows where the number comes back to a tensor: as an argument, as data, or as
work that the other side lacks. A number that is only printed shows nowhere.
"""

from __future__ import annotations

from opguard_core.align.columns import READ
from opguard_core.align.timeline import REFERENCE, SUSPECT, Row
from opguard_core.certify.roots import Node
from opguard_core.certify.standing import Rows, Standing

MAX_COPIES = 8
"""Copies in a row that are looked through."""


def is_other_reading(rows: Rows, node: Node, *, resumed: bool = False) -> bool:
    """Two reads that do not read the same quantity: one is told a value that both sides compute alike.

    What the other is told is that side's own affair (a mean over ranks, for its log), or differs for a reason that shows by
    itself, in the pair that wrote it. Where a run is resumed, what it sets up meets the other side's log of the step before;
    a quantity that both log comes again in the next window.

    Args:
        rows: Look-ups over the rank pair.
        node: A pair of events.
        resumed: One side begins in this window, and the other one does not.
    """
    sides = list(zip((REFERENCE, SUSPECT), node.both, strict=True))
    if not all(_only_tells(rows, side, node.window, event) for side, event in sides):
        return False
    return resumed or any(_reads_shared(rows, side, node.window, event, 0) for side, event in sides)


def _only_tells(rows: Rows, side: int, number: int, event: int) -> bool:
    return bool(rows.timeline.flow(side, number).window.kind[event] == READ)


def _reads_shared(rows: Rows, side: int, number: int, event: int, copies: int) -> bool:
    """Whatever the event reads was written alike on the other side."""
    window = rows.timeline.flow(side, number).window
    reads = window.reads(event).tolist()
    return bool(reads) and all(_is_shared(rows, Row(side, number, read), copies) for read in reads)


def _is_shared(rows: Rows, read: Row, copies: int) -> bool:
    """Who wrote what is read has a partner that wrote the same, or only copied something of which that holds."""
    writers, unwritten = rows.timeline.producers(read)
    if unwritten or not writers:
        return False
    for writer in writers:
        standing = rows.standing(writer)
        if standing is Standing.SAME:
            continue
        if standing is not Standing.FREE or copies >= MAX_COPIES or not _copies(rows, writer):
            return False
        if not _reads_shared(rows, writer.side, writer.window, rows.event(writer), copies + 1):
            return False
    return True


def is_copy_of_shared(rows: Rows, writer: Row) -> bool:
    """The row's event only copied something that was written alike on both sides."""
    return (
        rows.timeline.is_common(writer.window)
        and _copies(rows, writer)
        and _reads_shared(rows, writer.side, writer.window, rows.event(writer), 1)
    )


def _copies(rows: Rows, writer: Row) -> bool:
    """The row's event reads one thing and writes the same value."""
    window = rows.timeline.flow(writer.side, writer.window).window
    reads = window.reads(rows.event(writer)).tolist()
    return len(reads) == 1 and bool(window.known[reads[0]] and window.value[reads[0]] == window.value[writer.row])
