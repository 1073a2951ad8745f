"""What work is that only one side does: whether it takes hold of the other side's value, and whether it is only a cast."""

from __future__ import annotations

from dataclasses import replace

from opguard_core.align.columns import MUT
from opguard_core.align.timeline import Row, Timeline
from opguard_core.certify.roots import Node, Root
from opguard_core.certify.standing import Rows
from opguard_core.ids import Origin

_CASTS = ("_to_copy", "to", "type_as", "copy", "convert_element_type")


def takes_hold(rows: Rows, node: Node, theirs: Row, missing: list[Row]) -> bool:
    """Whether an event of one side reads the value the other side's consumer reads, another view of what made that, or changes it.

    Args:
        rows: Look-ups over the rank pair.
        node: The event, which has no partner.
        theirs: What the other side's consumer reads.
        missing: Who wrote what the event reads, as far as the other side lacks that, too.
    """
    side, event = node.one
    window = rows.timeline.flow(side, node.window).window
    other = rows.timeline.flow(theirs.side, theirs.window).window
    reads = window.reads(event)
    if other.known[theirs.row] and (window.known[reads] & (window.value[reads] == other.value[theirs.row])).any():
        return True
    made = {rows.counterpart(row) for row in rows.timeline.producers(theirs)[0]}
    if any(row in made for read in reads.tolist() for row in rows.timeline.producers(Row(side, node.window, read))[0]):
        return True
    written = window.outputs(event)
    written = written[window.direction[written] == MUT]
    unmade = {_storage(rows.timeline, row) for row in missing}
    return any(
        window.storage[row] not in unmade and _was_made_before(rows.timeline, Row(side, node.window, int(row)))
        for row in written
        if window.storage[row] >= 0
    )


def _storage(timeline: Timeline, row: Row) -> int:
    return int(timeline.flow(row.side, row.window).window.storage[row.row])


def _was_made_before(timeline: Timeline, row: Row) -> bool:
    """A storage held something before this write: made by an earlier operator, or there when the window began."""
    flow = timeline.flow(row.side, row.window)
    before = next(flow.writes_before(row.row), None)
    if before is not None:
        return bool(flow.window.known[before])
    storage = flow.window.storage[row.row : row.row + 1]
    return bool(timeline.ledgers[row.side].lifetimes.born(storage)[0] < flow.window.seq[flow.window.event[row.row]])


def as_cast(timeline: Timeline, root: Root) -> Root:
    """A root as it is, or with origin `dtype` if it is work of one side alone and nothing but a cast."""
    if root.origin != Origin.STRUCTURE or root.node.is_pair:
        return root
    side, event = root.node.one
    window = timeline.flow(side, root.node.window).window
    reads, made = window.reads(event), window.outputs(event)
    if len(reads) != 1 or len(made) != 1 or window.shape[reads[0]] != window.shape[made[0]]:
        return root
    dtypes = [window.text(int(window.dtype[row])) for row in (reads[0], made[0])]
    if window.text(int(window.op[event])) not in _CASTS or dtypes[0] == dtypes[1] or not all("float" in dtype for dtype in dtypes):
        return root
    return replace(root, origin=Origin.DTYPE, alternatives=(str(Origin.STRUCTURE),))
