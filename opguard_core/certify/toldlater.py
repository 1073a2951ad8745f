"""Differences of one window that Python is told of only in the next one: a loss that is printed after the update.

Inside its own window such a difference reaches nothing that counts, and what follows from it (the backward pass) would be
taken for the first.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from opguard_core.align import slots
from opguard_core.align.columns import READ
from opguard_core.align.timeline import REFERENCE, SUSPECT, Row, Timeline
from opguard_core.certify.index import WindowIndex
from opguard_core.certify.matters import READ_SINK, Matters, Sink
from opguard_core.certify.standing import Rows

MAX_READS = 4096
"""Differing reads of the next window that are looked at."""

MAX_STEPS = 64
"""Values looked through from a read up: a mean over what was logged, a gather over ranks, a sum over micro-batches."""


def told_later(
    timeline: Timeline, rows: Rows, lefts: set[int], index: WindowIndex, ahead: WindowIndex, matters: Matters
) -> dict[int, Sink]:
    """Pairs of a window whose differing results a read of the next window hands on, on both sides.

    Args:
        timeline: All windows; the ledgers hold the earlier one.
        rows: Look-ups over them.
        lefts: Reference events of the window's pairs that differ and reached nothing.
        index: The window.
        ahead: The next one.
        matters: Dataflow questions about the next one.

    Returns:
        The reading sink, by reference event, in order.
    """
    number, after = index.window(REFERENCE).number, ahead.window(REFERENCE).number
    aligned, windows = ahead.aligned, {number: index, after: ahead}
    is_read = aligned.reference.window.kind[aligned.pairs] == READ
    found: dict[int, Sink] = {}
    for left in aligned.pairs[np.flatnonzero(is_read & aligned.reads_differ)][:MAX_READS].tolist():
        sink = matters.own_sink(left)
        if sink is None or sink.kind != READ_SINK:
            continue
        for at in ahead.inputs_of(int(ahead.pair_of[left])):
            if aligned.inputs.code[at] <= slots.LAST_SAME:
                continue
            writers = [
                _writers(timeline, rows, windows, Row(side, after, row), number)
                for side, row in ((REFERENCE, int(aligned.inputs.left[at])), (SUSPECT, int(aligned.inputs.right[at])))
            ]
            for event in writers[REFERENCE] & lefts:
                if int(index.aligned.left[event]) in writers[SUSPECT]:
                    found.setdefault(event, sink)
    return dict(sorted(found.items()))


def _writers(timeline: Timeline, rows: Rows, windows: dict[int, WindowIndex], read: Row, number: int) -> set[int]:
    """Events of the earlier window that a read goes back to, through what differs in either window."""
    found: set[int] = set()
    seen: set[Row] = set()
    queue = deque([read])
    while queue and len(seen) < MAX_STEPS:
        at = queue.popleft()
        seen.add(at)
        for writer in timeline.producers(at)[0]:
            index = windows.get(writer.window)
            if index is None:
                continue
            event = rows.event(writer)
            if writer.window == number:
                found.add(event)
            reads = [Row(read.side, writer.window, row) for row in index.window(read.side).reads(event).tolist()]
            queue += [row for row in reads if row not in seen and index.read_codes[read.side][row.row] > slots.LAST_SAME]
    return found
