"""What a pivot read without anybody looking at it again: there, work that nothing attributed may have written in between.

A read that was fingerprinted at the pivot, and is equal, is what the trace says it is, whatever ran before. One that was only carried from
its producer, or that differs, may have been written by such work after the producer: the pivot would then be the wrong place.
"""

from __future__ import annotations

from typing import NamedTuple

from opguard_core.align import slots
from opguard_core.align.columns import PROBED, STATE
from opguard_core.align.timeline import REFERENCE, SUSPECT, Row
from opguard_core.certify.roots import Node, Root
from opguard_core.certify.standing import Rows
from opguard_core.ids import Origin

_SHOWN_BY_ITSELF = frozenset({str(Origin.RANDOM_STATE), str(Origin.ARGUMENT), str(Origin.DTYPE)})
"""Origins that no bytes in memory can make: generators, arguments and precisions are recorded as such."""


class Exposed(NamedTuple):
    """A stretch of one side in which what the pivot read was nobody's.

    Attributes:
        side: Reference or suspect.
        first: Event that last wrote it; the first of the window where nothing observed did.
        last: Event that reads it.
    """

    side: int
    first: int
    last: int


def exposed(rows: Rows, root: Root) -> list[Exposed]:
    """Stretches that a root's claim has to trust.

    Args:
        rows: Look-ups over the rank pair.
        root: Where the first difference begins.

    Cost: the producers of the root's inputs, and of its consumer's where one side lacks the root.
    """
    if root.origin in _SHOWN_BY_ITSELF:
        return []
    found: list[Exposed] = []
    if root.node.is_pair:
        found += [stretch for side in (REFERENCE, SUSPECT) for stretch in _of_side(rows, root.node, side)]
    if root.consumer is not None and root.origin == Origin.STRUCTURE:  # unattributed work may have done what one side seems to lack
        found += [stretch for side in (REFERENCE, SUSPECT) for stretch in _of_side(rows, root.consumer, side, carried=False)]
    return list(dict.fromkeys(found))


def _of_side(rows: Rows, node: Node, side: int, *, carried: bool = True) -> list[Exposed]:
    """Stretches of what one side reads there: of reads that differ, and of those that nobody looked at again if ``carried``."""
    event = (node.left, node.right)[side]
    if event is None:
        return []
    window = rows.timeline.flow(side, node.window).window
    codes = rows.index(node.window).read_codes[side] if rows.timeline.is_common(node.window) else None
    carried = carried and window.kind[event] != STATE
    found = []
    for row in window.reads(event).tolist():
        code = slots.UNMATCHED if codes is None else int(codes[row])
        if slots.LAST_SAME < code < slots.UNMATCHED or (carried and window.status[row] != PROBED):
            found.append(Exposed(side, _written(rows, Row(side, node.window, row)), int(window.seq[event])))
    return found


def _written(rows: Rows, read: Row) -> int:
    """Event that the oldest byte of a read comes from."""
    writers, unwritten = rows.timeline.producers(read)
    first = int(rows.timeline.flow(read.side, read.window).window.seq[0])
    if unwritten or not writers:
        return first
    return min(int(rows.timeline.flow(row.side, row.window).window.seq[rows.event(row)]) for row in writers)
