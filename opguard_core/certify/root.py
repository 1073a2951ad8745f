"""From a difference that matters up to where it comes from: through the producers of the differing inputs to the root.

Works over all windows, on both sides alike: no rule knows which side is called the suspect. A walk ends where all inputs
are the same (the operator itself, its arguments, its precision, its random state), where bytes changed without a writer,
where nothing observed wrote them, or where one side does work the other lacks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from opguard_core.align import slots
from opguard_core.align.columns import PHASES, PROBED, Window
from opguard_core.align.dataflow import is_dense
from opguard_core.align.timeline import REFERENCE, SUSPECT, Row, Timeline
from opguard_core.certify.index import WindowIndex
from opguard_core.ids import Origin

MAX_NODES = 20_000
"""Events looked at in one walk; real ones end after a handful."""

_SAME, _KNOWN, _DIFFERS, _FREE = "same", "known", "differs", "free"


@dataclass(frozen=True)
class Node:
    """An event of one side, or one of each: what a walk stands on.

    Attributes:
        window: Window number.
        left: Reference event, None where that side has nothing.
        right: Suspect event, None where that side has nothing.
    """

    window: int
    left: int | None
    right: int | None


@dataclass(frozen=True)
class Root:
    """Where a difference begins.

    Attributes:
        node: The boundary.
        origin: Why it differs.
        slot: Name of the slot that shows it.
        alternatives: Other origins the trace cannot exclude.
        consumer: The pair whose input led here, None when the walk never moved.
        near: Other events to look at, with what they are.
    """

    node: Node
    origin: str
    slot: str
    alternatives: tuple[str, ...] = ()
    consumer: Node | None = None
    near: tuple[tuple[str, Node], ...] = ()


@dataclass
class Walk:
    """State of one walk.

    Attributes:
        queue: Nodes to look at, with the pair they were reached from.
        seen: Nodes looked at, in order.
        roots: What was found.
    """

    queue: deque[tuple[Node, Node | None]] = field(default_factory=deque)
    seen: dict[Node, Node | None] = field(default_factory=dict)
    roots: list[Root] = field(default_factory=list)

    def push(self, node: Node, consumer: Node | None) -> None:
        """Look at a node later, once."""
        if node not in self.seen:
            self.seen[node] = consumer
            self.queue.append((node, consumer))


class RootWalk:
    """Root walks over one rank pair.

    Args:
        timeline: All its windows.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._indices: OrderedDict[int, WindowIndex] = OrderedDict()

    def index(self, window: int) -> WindowIndex:
        """A window's look-ups, from memory or read again."""
        found = self._indices.get(window)
        if found is None:
            found = self._indices[window] = WindowIndex(self.timeline.aligned(window))
            while len(self._indices) > 3:
                self._indices.popitem(last=False)
        return found

    def adopt(self, window: int, index: WindowIndex) -> None:
        """Use look-ups that already exist."""
        self._indices[window] = index
        while len(self._indices) > 3:
            self._indices.popitem(last=False)

    def from_pair(self, node: Node) -> list[Root]:
        """Roots of a differing pair, earliest first."""
        walk = Walk()
        walk.push(node, None)
        return self._finish(walk)

    def from_slots(self, node: Node, left_row: int, right_row: int) -> list[Root]:
        """Roots of one differing input of a pair (of a state boundary, say), earliest first."""
        walk = Walk(seen={node: None})
        self._input(walk, node, left_row, right_row)
        return self._finish(walk)

    def _finish(self, walk: Walk) -> list[Root]:
        while walk.queue and len(walk.seen) < MAX_NODES:
            node, consumer = walk.queue.popleft()
            if node.left is not None and node.right is not None:
                self._pair(walk, node, consumer)
            else:
                self._lone(walk, node, consumer)
        if not walk.roots:  # a circle: the same updates in another order
            first = min(walk.seen, key=self.order)
            walk.roots.append(Root(first, Origin.STRUCTURE, self.output_slot(first), consumer=walk.seen[first]))
        return sorted(_merged(walk.roots), key=lambda root: self.order(root.node))

    def order(self, node: Node) -> tuple[int, int]:
        """Sort key of a node over all windows, the same whichever side is called the suspect."""
        return node.window, self.index(node.window).order(node.left, node.right)

    # -- one pair ------------------------------------------------------------------------------------------------------

    def _pair(self, walk: Walk, node: Node, consumer: Node | None) -> None:
        index = self.index(node.window)
        assert node.left is not None and node.right is not None
        r, s = index.window(REFERENCE), index.window(SUSPECT)
        if r.rng[node.left] and s.rng[node.right] and _random_state_differs(r, s, node.left, node.right):
            walk.roots.append(Root(node, Origin.RANDOM_STATE, self.output_slot(node), consumer=consumer))
            return
        inputs = self._matched(node, outputs=False)
        differing = [at for at in range(len(inputs.left)) if inputs.code[at] > slots.LAST_SAME]
        if not differing:
            walk.roots.append(self._local(node, inputs, consumer))
        for at in differing:
            self._input(walk, node, int(inputs.left[at]), int(inputs.right[at]))

    def _matched(self, node: Node, *, outputs: bool) -> slots.Matched:
        """Slots of a pair: as aligned, or matched now when the pair is the walk's own."""
        index = self.index(node.window)
        aligned = index.aligned
        if aligned.left[node.left] == node.right:
            pair = int(index.pair_of[node.left])
            whole, part = (aligned.outputs, index.outputs_of(pair)) if outputs else (aligned.inputs, index.inputs_of(pair))
            at = slice(part.start, part.stop)
            return slots.Matched(whole.pair[at], whole.left[at], whole.right[at], whole.code[at])
        r, s = index.window(REFERENCE), index.window(SUSPECT)
        return slots.match(r, s, np.array([node.left]), np.array([node.right]), outputs=outputs)

    def _local(self, node: Node, inputs: slots.Matched, consumer: Node | None) -> Root:
        """The origin of a pair that reads the same on both sides and yet gives another result."""
        index = self.index(node.window)
        r, s = index.window(REFERENCE), index.window(SUSPECT)
        outputs = self._matched(node, outputs=True)
        first = next((at for at in range(len(outputs.code)) if outputs.code[at] > slots.LAST_SAME), None)
        slot = s.text(int(s.slot[outputs.right[first]])) if first is not None else self.output_slot(node)
        same_op = r.op[node.left] == s.op[node.right]
        same_args = r.args[node.left] == s.args[node.right]
        precision = first is not None and r.dtype[outputs.left[first]] != s.dtype[outputs.right[first]]
        precision = precision or bool((inputs.code == slots.CAST).any() and (r.dtype[inputs.left] != s.dtype[inputs.right]).any())
        permuted = first is not None and outputs.code[first] == slots.PERMUTED
        candidates = [
            (permuted, Origin.PERMUTATION),
            (not same_op, Origin.STRUCTURE),
            (precision, Origin.DTYPE),
            (not same_args, Origin.ARGUMENT),
        ]
        origins = [str(origin) for holds, origin in candidates if holds]
        if not origins:
            origins = [str(Origin.OPERATOR), *_doubts(r, s, inputs)]
        return Root(node, origins[0], slot, tuple(origins[1:]), consumer)

    def output_slot(self, node: Node) -> str:
        """Name of the first differing output, else of the first slot, of a node."""
        index = self.index(node.window)
        if node.left is not None and node.right is not None:
            outputs = self._matched(node, outputs=True)
            bad = np.flatnonzero(outputs.code > slots.LAST_SAME)
            if len(bad):
                return index.window(SUSPECT).text(int(index.window(SUSPECT).slot[outputs.right[bad[0]]]))
        side, event = (SUSPECT, node.right) if node.right is not None else (REFERENCE, node.left)
        window = index.window(side)
        rows = [*window.outputs(int(event or 0)).tolist(), *window.reads(int(event or 0)).tolist()]
        return window.text(int(window.slot[rows[0]])) if rows else ""

    # -- one differing input -------------------------------------------------------------------------------------------

    def _input(self, walk: Walk, node: Node, left_row: int, right_row: int) -> None:
        rows = (Row(REFERENCE, node.window, left_row), Row(SUSPECT, node.window, right_row))
        found = [self.timeline.producers(row) for row in rows]
        producers = [rows_ for rows_, _ in found]
        window = self.index(node.window).window(SUSPECT)
        slot = window.text(int(window.slot[right_row]))
        silent = [self._silently_changed(row, writers) for row, writers in zip(rows, producers, strict=True)]
        if any(silent):
            origin = Origin.MUTATED if not all(silent) else Origin.UNOBSERVED_PRODUCER
            other = (str(Origin.MUTATED),) if all(silent) else ()
            near = self._producer_nodes(producers)
            walk.roots.append(Root(node, origin, slot, other, walk.seen.get(node), near))
            return
        if not any(producers) or any(not writers and not self._is_known(row) for row, writers in zip(rows, producers, strict=True)):
            walk.roots.append(self._outside(walk, node, rows, slot, lone=any(producers)))
            return
        self._compare_producers(walk, node, producers, slot)

    def _silently_changed(self, read: Row, writers: list[Row]) -> bool:
        """The bytes read are not the bytes the one operator that wrote exactly this extent left there."""
        if not writers:
            return False
        write = writers[0]
        r, w = self.timeline.flow(read.side, read.window).window, self.timeline.flow(write.side, write.window).window
        a, b = read.row, write.row
        if r.status[a] != PROBED or not w.known[b] or not r.known[a]:
            return False
        same_extent = r.lo[a] == w.lo[b] and r.hi[a] == w.hi[b] and r.dtype[a] == w.dtype[b] and r.nbytes[a] == w.nbytes[b]
        return bool(same_extent and is_dense(r, a) and r.bag[a] != w.bag[b])

    def _outside(self, walk: Walk, node: Node, rows: tuple[Row, Row], slot: str, *, lone: bool) -> Root:
        """Nothing observed wrote what differs: it came with the program's state, with its data, or from something unseen."""
        index = self.index(node.window)
        names = [index.window(row.side).text(int(index.window(row.side).tensor[row.row])) for row in rows]
        phases = {
            PHASES[index.window(side).phase[event]] for side, event in ((REFERENCE, node.left), (SUSPECT, node.right)) if event is not None
        }
        if any(names) and not lone:
            origin, other = Origin.INITIAL_STATE, Origin.UNOBSERVED_PRODUCER
        elif phases <= {"data", "forward", "eval"} and not lone:
            origin, other = Origin.INPUT_DATA, Origin.UNOBSERVED_PRODUCER
        else:
            origin, other = Origin.UNOBSERVED_PRODUCER, Origin.INPUT_DATA
        return Root(node, origin, slot, (str(other),), walk.seen.get(node))

    def _compare_producers(self, walk: Walk, node: Node, producers: list[list[Row]], slot: str) -> None:
        left, right = list(producers[0]), list(producers[1])
        for row in producers[0]:
            partner = self._counterpart(row)
            if partner is None or partner not in right:
                continue
            left.remove(row)
            right.remove(partner)
            if self._differs(row):
                walk.push(Node(row.window, self._event(row), self._event(partner)), node)
        moved = len(left) < len(producers[0]) and any(consumer == node for consumer in walk.seen.values())
        if any(self._comes_later(row, node) for row in (*left, *right)):
            walk.roots.append(self._stale(walk, node, producers, slot))
            return
        bad_left = [row for row in left if self._standing(row) in (_DIFFERS, _FREE)]
        bad_right = [row for row in right if self._standing(row) in (_DIFFERS, _FREE)]
        if not bad_left and not bad_right:
            if not moved:
                walk.roots.append(self._stale(walk, node, producers, slot))
        elif bad_left and bad_right:
            self._both(walk, node, bad_left[0], bad_right[0], slot, producers)
        else:
            for row in bad_left or bad_right:
                self._follow(walk, node, row)

    def _comes_later(self, row: Row, consumer: Node) -> bool:
        """The row's partner runs only after the consumer on its own side: the same work in another order."""
        if not self._surely_paired(row):
            return False
        partner = self.index(row.window).partner(row.side, self._event(row))
        own = consumer.left if row.side == SUSPECT else consumer.right
        return own is not None and (row.window, partner) >= (consumer.window, own)

    def _both(self, walk: Walk, node: Node, left: Row, right: Row, slot: str, producers: list[list[Row]]) -> None:
        """Each side's value comes from an operator whose result the other side does not have."""
        if self._alike(left, right) and left.window == right.window and not self._surely_paired(left) and not self._surely_paired(right):
            walk.push(Node(left.window, self._event(left), self._event(right)), node)
            return
        index = self.index(node.window)
        same_op = node.left is None or node.right is None or index.window(REFERENCE).op[node.left] == index.window(SUSPECT).op[node.right]
        if not same_op and not self._surely_paired(left) and not self._surely_paired(right):
            walk.roots.append(self._stale(walk, node, producers, slot))
            return
        self._follow(walk, node, left)
        self._follow(walk, node, right)

    def _follow(self, walk: Walk, node: Node, row: Row) -> None:
        """Go on from one producer: with its own partner when that is sure, else alone."""
        event = self._event(row)
        if self._surely_paired(row):
            walk.push(Node(row.window, *self.index(row.window).sides(row.side, event)), node)
        else:
            walk.push(Node(row.window, *((None, event) if row.side == SUSPECT else (event, None))), node)

    def _stale(self, walk: Walk, node: Node, producers: list[list[Row]], slot: str) -> Root:
        """Both sides know both values, and yet they read different ones: a stale value, another view, other elements."""
        near = self._producer_nodes(producers)
        if node.left is not None and self.index(node.window).is_state(REFERENCE, node.left):
            return Root(self._unstored(producers) or node, Origin.STRUCTURE, slot, (), node, near)
        outputs = self._matched(node, outputs=True) if node.left is not None and node.right is not None else None
        permuted = outputs is not None and bool((outputs.code == slots.PERMUTED).any())
        origin = Origin.PERMUTATION if permuted else Origin.STRUCTURE
        return Root(node, origin, slot, (), walk.seen.get(node), near)

    def _unstored(self, producers: list[list[Row]]) -> Node | None:
        """State whose values both sides computed: the pair whose result only one of them stored, which is the later writer's."""
        found = [
            Node(row.window, *self.index(row.window).sides(row.side, self._event(row)))
            for rows in producers
            for row in rows[:1]
            if self._common(row) and self.index(row.window).partner(row.side, self._event(row)) >= 0
        ]
        return max(found, key=self.order, default=None)

    def _producer_nodes(self, producers: list[list[Row]]) -> tuple[tuple[str, Node], ...]:
        nodes = []
        for rows in producers:
            for row in rows[:1]:
                event = self._event(row)
                nodes.append(("producer", Node(row.window, *((None, event) if row.side == SUSPECT else (event, None)))))
        return tuple(nodes)

    # -- one event that only one side has ------------------------------------------------------------------------------

    def _lone(self, walk: Walk, node: Node, consumer: Node | None) -> None:
        side, event = (SUSPECT, node.right) if node.right is not None else (REFERENCE, node.left)
        assert event is not None
        window = self.timeline.flow(side, node.window).window
        moved = False
        for row in window.reads(event).tolist():
            at = Row(side, node.window, row)
            if self._is_known(at):
                continue
            for producer in self.timeline.producers(at)[0]:
                if self._standing(producer) in (_DIFFERS, _FREE):
                    self._follow(walk, node if consumer is None else consumer, producer)
                    moved = True
        if not moved:
            walk.roots.append(Root(node, Origin.STRUCTURE, self.output_slot(node), consumer=consumer))

    # -- what is known of a row ----------------------------------------------------------------------------------------

    def _event(self, row: Row) -> int:
        return int(self.timeline.flow(row.side, row.window).window.event[row.row])

    def _common(self, row: Row) -> bool:
        return self.timeline.is_common(row.window)

    def _is_known(self, row: Row) -> bool:
        return self._common(row) and self.index(row.window).is_known(row.side, row.row)

    def _counterpart(self, row: Row) -> Row | None:
        """The matched output of the paired event."""
        if not self._common(row):
            return None
        index = self.index(row.window)
        at = int(index.output_index[row.side][row.row])
        if at < 0:
            return None
        outputs = index.aligned.outputs
        return Row(1 - row.side, row.window, int(outputs.right[at] if row.side == REFERENCE else outputs.left[at]))

    def is_missing(self, row: Row) -> bool:
        """The other side has nothing that holds what this row holds."""
        return self._standing(row) in (_DIFFERS, _FREE)

    def _differs(self, row: Row) -> bool:
        """The row and its counterpart hold different bytes, wherever else they may occur."""
        index = self.index(row.window)
        return bool(index.aligned.outputs.code[index.output_index[row.side][row.row]] > slots.LAST_SAME)

    def _standing(self, row: Row) -> str:
        """Whether the other side has what this row holds: by its pair, by content elsewhere, or not."""
        if not self._common(row):
            return _FREE
        index = self.index(row.window)
        at = int(index.output_index[row.side][row.row])
        if at >= 0 and index.aligned.outputs.code[at] <= slots.LAST_SAME:
            return _SAME
        if index.is_known(row.side, row.row) or index.is_constant(row.side, row.row):
            return _KNOWN
        return _DIFFERS if at >= 0 else _FREE

    def _surely_paired(self, row: Row) -> bool:
        if not self._common(row):
            return False
        index = self.index(row.window)
        left, right = index.sides(row.side, self._event(row))
        return min(left, right) >= 0 and index.sure(left)

    def _alike(self, left: Row, right: Row) -> bool:
        """Same number of elements and dtype: the two may be the same work done differently."""
        a, b = (self.timeline.flow(row.side, row.window).window for row in (left, right))
        numel = [int(window.vocabulary.numel(window.shape[row.row : row.row + 1])[0]) for window, row in ((a, left), (b, right))]
        return numel[0] == numel[1] and bool(a.dtype[left.row] == b.dtype[right.row])


def _random_state_differs(reference: Window, suspect: Window, left: int, right: int) -> bool:
    before = reference.rng_before[left], suspect.rng_before[right]
    return bool(before[0] and before[1] and before[0] != before[1])


def _doubts(reference: Window, suspect: Window, inputs: slots.Matched) -> list[str]:
    """What an `operator` origin cannot exclude: inputs that were not read again, or are not known at all."""
    doubts = []
    if (inputs.code == slots.UNKNOWN).any():
        doubts.append(str(Origin.UNOBSERVED_PRODUCER))
    probed = (reference.status[inputs.left] == PROBED) & (suspect.status[inputs.right] == PROBED)
    if not probed.all():
        doubts.append(str(Origin.MUTATED))
    return doubts


def _merged(roots: list[Root]) -> list[Root]:
    """Join work that each side does alone for the same consumer: the one stands in the other's place."""
    kept: list[Root] = []
    lone: dict[Node | None, Root] = {}
    for root in roots:
        if root.origin != Origin.STRUCTURE or (root.node.left is not None and root.node.right is not None):
            kept.append(root)
            continue
        other = lone.get(root.consumer)
        if other is None or (other.node.left is None) == (root.node.left is None) or other.node.window != root.node.window:
            lone.setdefault(root.consumer, root)
            kept.append(root)
            continue
        left = root.node.left if root.node.left is not None else other.node.left
        right = root.node.right if root.node.right is not None else other.node.right
        kept[kept.index(other)] = Root(Node(root.node.window, left, right), root.origin, root.slot, (), root.consumer)
        del lone[root.consumer]
    return kept
