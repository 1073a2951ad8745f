"""What the other side knows of a slot's bytes: by the pair of their writer, by content elsewhere, or not at all."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum

from opguard_core.align import slots
from opguard_core.align.columns import PROBED
from opguard_core.align.dataflow import is_dense
from opguard_core.align.timeline import REFERENCE, SUSPECT, Row, Timeline
from opguard_core.certify.index import WindowIndex
from opguard_core.certify.roots import Node

KEPT_INDICES = 3


class Standing(Enum):
    """How the other side stands to a row."""

    SAME = "same"  # its writer's partner wrote the same
    KNOWN = "known"  # the same bytes occur elsewhere in the other side's window
    DIFFERS = "differs"  # its writer's partner wrote something else
    FREE = "free"  # its writer has no partner

    @property
    def is_missing(self) -> bool:
        """The other side has nothing that holds these bytes."""
        return self in (Standing.DIFFERS, Standing.FREE)


class Rows:
    """Look-ups of rows over all windows of one rank pair.

    Args:
        timeline: All its windows.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._indices: OrderedDict[int, WindowIndex] = OrderedDict()

    def index(self, window: int) -> WindowIndex:
        """Look-ups into a window both sides have, from memory or read again."""
        if window not in self._indices:
            self.adopt(window, WindowIndex(self.timeline.aligned(window)))
        return self._indices[window]

    def adopt(self, window: int, index: WindowIndex) -> None:
        """Use look-ups that already exist."""
        self._indices[window] = index
        while len(self._indices) > KEPT_INDICES:
            self._indices.popitem(last=False)

    def order(self, node: Node) -> tuple[int, int]:
        """Sort key of a node over all windows, the same whichever side is called the suspect."""
        if self.timeline.is_common(node.window):
            return node.window, self.index(node.window).order(node.left, node.right)
        return node.window, int(node.left if node.left is not None else node.right or 0)

    def turn(self, node: Node) -> tuple[int, int, int]:
        """Sort key as `order`, which also tells apart what one side does alone between the same two pairs."""
        return *self.order(node), 0 if node.is_pair else node.one[1]

    def event(self, row: Row) -> int:
        """The event of a row."""
        return int(self.timeline.flow(row.side, row.window).window.event[row.row])

    def lone_node(self, row: Row) -> Node:
        """The event of a row, without a partner."""
        event = self.event(row)
        return Node(row.window, None, event) if row.side == SUSPECT else Node(row.window, event, None)

    def pair_node(self, row: Row) -> Node | None:
        """The pair of a row's event; None when it has no partner."""
        if not self.timeline.is_common(row.window):
            return None
        left, right = self.index(row.window).sides(row.side, self.event(row))
        return Node(row.window, left, right) if min(left, right) >= 0 else None

    def sure_node(self, row: Row) -> Node | None:
        """As `pair_node`, when the pair is sure."""
        node = self.pair_node(row)
        return node if node is not None and node.left is not None and self.index(row.window).sure(node.left) else None

    def is_known(self, row: Row) -> bool:
        """The bytes of a row also occur on the other side, in the same window."""
        return self.timeline.is_common(row.window) and self.index(row.window).is_known(row.side, row.row)

    def counterpart(self, row: Row) -> Row | None:
        """The matched output of the paired event."""
        if not self.timeline.is_common(row.window):
            return None
        index = self.index(row.window)
        at = int(index.output_index[row.side][row.row])
        if at < 0:
            return None
        outputs = index.aligned.outputs
        return Row(1 - row.side, row.window, int(outputs.right[at] if row.side == REFERENCE else outputs.left[at]))

    def differs(self, row: Row) -> bool:
        """A row with a counterpart and its counterpart hold different bytes, wherever else they may occur."""
        index = self.index(row.window)
        return bool(index.aligned.outputs.code[index.output_index[row.side][row.row]] > slots.LAST_SAME)

    def standing(self, row: Row) -> Standing:
        """How the other side stands to what an output row holds."""
        if not self.timeline.is_common(row.window):
            return Standing.FREE
        index = self.index(row.window)
        at = int(index.output_index[row.side][row.row])
        if at >= 0 and index.aligned.outputs.code[at] <= slots.LAST_SAME:
            return Standing.SAME
        if index.is_known(row.side, row.row) or index.is_constant(row.side, row.row):
            return Standing.KNOWN
        return Standing.DIFFERS if at >= 0 else Standing.FREE

    def is_missing(self, row: Row) -> bool:
        """The other side has nothing that holds what an output row holds."""
        return self.standing(row).is_missing

    def lacks_results(self, node: Node) -> bool:
        """The other side has nothing that holds the first result, which was looked at, of what each side of a node does alone."""
        rows: list[Row] = []
        for side, event in ((REFERENCE, node.left), (SUSPECT, node.right)):
            window = self.timeline.flow(side, node.window).window
            rows += [] if event is None else [Row(side, node.window, row) for row in window.outputs(event)[:1].tolist()]
        return bool(rows) and all(self.timeline.flow(at.side, at.window).window.known[at.row] and self.is_missing(at) for at in rows)

    def alike(self, left: Row, right: Row) -> bool:
        """Same number of elements and dtype: the two may be the same work done differently."""
        a, b = (self.timeline.flow(row.side, row.window).window for row in (left, right))
        numel = [int(window.vocabulary.numel(window.shape[row.row : row.row + 1])[0]) for window, row in ((a, left), (b, right))]
        return numel[0] == numel[1] and bool(a.dtype[left.row] == b.dtype[right.row])

    def comes_later(self, row: Row, consumer: Node) -> bool:
        """The row's sure partner runs only after the consumer on its own side: the same work in another order."""
        node = self.sure_node(row)
        if node is None:
            return False
        partner, own = (node.left, consumer.left) if row.side == SUSPECT else (node.right, consumer.right)
        return own is not None and (row.window, partner or 0) >= (consumer.window, own)

    def silently_changed(self, read: Row, writers: list[Row]) -> bool:
        """The bytes read are not the bytes the one operator that wrote exactly this extent left there."""
        if not writers:
            return False
        write = writers[0]
        r, w = self.timeline.flow(read.side, read.window).window, self.timeline.flow(write.side, write.window).window
        a, b = read.row, write.row
        if r.status[a] != PROBED or not w.known[b]:
            return False
        same_extent = r.lo[a] == w.lo[b] and r.hi[a] == w.hi[b] and r.dtype[a] == w.dtype[b] and r.nbytes[a] == w.nbytes[b]
        return bool(same_extent and is_dense(r, a) and r.bag[a] != w.bag[b])
