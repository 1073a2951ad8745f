"""How a difference spreads: who reads it, on both sides, whether their results differ, and what that counts it reaches first.

One window, in the order in which things happen. An edge ends where the bytes read are the same after all, or where the results
are; the first of the latter is where the sides come together again. What lasts beyond the window is named by the state boundary.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from opguard_core.align import slots
from opguard_core.align.columns import COLLECTIVE, MUT, OPTIMIZER_PHASE, READ, STATE
from opguard_core.align.timeline import REFERENCE, SUSPECT
from opguard_core.certify.index import WindowIndex
from opguard_core.certify.losses import starts
from opguard_core.certify.roots import Node
from opguard_core.certify.statecompare import StateBoundary, kind_of

CONSUMERS_SHOWN = 10
MAX_READS = 1 << 16
"""Reads followed; the spread of a difference that more than these see is told as far as it was followed."""

_NONE = -1


class Results(Enum):
    """What a consumer of differing bytes made of them."""

    DIFFER = "differ"
    SAME = "same"
    UNKNOWN = "unknown"  # the mode looked at nothing that it returned
    ALONE = "alone"  # the other side has no such operator
    TOLD = "told"  # the value left for Python or a file

    @property
    def goes_on(self) -> bool:
        """Its results carry the difference on."""
        return self in (Results.DIFFER, Results.UNKNOWN, Results.ALONE)


class Consumer(NamedTuple):
    """One boundary that reads a difference."""

    node: Node
    slot: str
    results: Results


@dataclass
class Spreading:
    """Where a difference goes inside its window.

    Attributes:
        window: The window.
        consumers: First boundaries that read it, in order.
        total: How many do.
        rejoined: The first of them that gives the same results all the same.
        reached: First boundary of each kind of thing that counts: "loss", "update", "collective", "read".
        state: Names of the state that differs at the window's end because of it, by kind.
        exhausted: Not followed to the end.
    """

    window: int
    consumers: list[Consumer] = field(default_factory=list)
    total: int = 0
    rejoined: Consumer | None = None
    reached: dict[str, Node] = field(default_factory=dict)
    state: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    exhausted: bool = False


def spreading(
    index: WindowIndex, state: StateBoundary, start: Node, consumer: Node | None = None, shown: int = CONSUMERS_SHOWN
) -> Spreading:
    """Follow a difference through one window.

    Args:
        index: The window.
        state: Its state boundary.
        start: Where the difference begins.
        consumer: The boundary that first shows it, where `start` itself does not.
        shown: Consumers to remember.

    Cost: linear in the reads that see differing bytes, at most `MAX_READS`.
    """
    walk = _Walk(index, state, Spreading(start.window), shown)
    if start.window == index.window(REFERENCE).number:
        walk.seen.add(_key(start))
        walk.leave(start)
    if consumer is not None and consumer.window == index.window(REFERENCE).number and not _is_state(index, consumer):
        walk.found.window = consumer.window
        walk.meet(consumer, "")
    walk.go()
    return walk.found


Key = tuple[int, int]


def _key(node: Node) -> Key:
    return (_NONE if node.left is None else node.left, _NONE if node.right is None else node.right)


class _Walk:
    """Boundaries in the order in which they happen, and the differing rows that lead to them."""

    def __init__(self, index: WindowIndex, state: StateBoundary, found: Spreading, shown: int) -> None:
        self.index = index
        self.found = found
        self.seen: set[Key] = set()
        self._shown = shown
        self._waiting: list[tuple[int, Key, str]] = []
        self._reads = 0
        differing = state.differing()
        self._state = ({slot.left for slot in differing}, {slot.right for slot in differing})
        self._losses = tuple(_losses(index, side) for side in (REFERENCE, SUSPECT))
        self._named: set[str] = set()

    def meet(self, node: Node, slot: str) -> None:
        """Note a boundary that reads the difference, to be looked at in its turn."""
        key = _key(node)
        if key not in self.seen:
            self.seen.add(key)
            heapq.heappush(self._waiting, (self.index.order(node.left, node.right), key, slot))

    def go(self) -> None:
        """Look at every boundary met, and at what their results lead to."""
        while self._waiting:
            _, (left, right), slot = heapq.heappop(self._waiting)
            node = Node(self.found.window, None if left == _NONE else left, None if right == _NONE else right)
            results = self._results(node)
            consumer = Consumer(node, slot, results)
            self.found.total += 1
            if len(self.found.consumers) < self._shown:
                self.found.consumers.append(consumer)
            self._count(node, results)
            if results is Results.SAME and self.found.rejoined is None:
                self.found.rejoined = consumer
            if results.goes_on:
                self.leave(node)

    def leave(self, node: Node) -> None:
        """Follow the differing results of a boundary to whoever reads them."""
        for side, row in self._carriers(node):
            if row in self._losses[side]:
                self.found.reached.setdefault("loss", node)
            for read in self.index.flow(side).consumers(row):
                self._reads += 1
                if self._reads > MAX_READS:
                    self.found.exhausted = True
                    return
                self._visit(side, read)

    def _carriers(self, node: Node) -> list[tuple[int, int]]:
        """(side, row) of the results in which a boundary differs; all of them where nobody looked, or the other side has none."""
        index = self.index
        if node.left is not None and node.right is not None and self._is_pair(node.left, node.right):
            if index.is_blind(node.left, node.right):
                return [(side, row) for side, one in ((REFERENCE, node.left), (SUSPECT, node.right)) for row in _outputs(index, side, one)]
            if not index.sure(node.left):  # its results may belong to others: what the other side has nowhere is followed
                return self._alone(node)
            outputs = index.aligned.outputs
            found = index.differing_outputs(int(index.pair_of[node.left]))
            return [at for one in found for at in ((REFERENCE, int(outputs.left[one])), (SUSPECT, int(outputs.right[one])))]
        return self._alone(node)

    def _alone(self, node: Node) -> list[tuple[int, int]]:
        """(side, row) of the results of a boundary that the other side has nowhere."""
        index = self.index
        lone = [(side, event) for side, event in ((REFERENCE, node.left), (SUSPECT, node.right)) if event is not None]
        return [(side, row) for side, event in lone for row in _outputs(index, side, event) if not index.is_known(side, row)]

    def _visit(self, side: int, row: int) -> None:
        index, window = self.index, self.index.window(side)
        event = int(window.event[row])
        slot = window.text(int(window.slot[row]))
        if window.kind[event] == STATE:
            if row in self._state[side] and slot not in self._named:
                self._named.add(slot)
                self.found.state[kind_of(slot)].append(slot.partition(":")[2])
            return
        left, right = index.sides(side, event)
        if min(left, right) >= 0 and index.sure(left):
            if index.read_codes[side][row] > slots.LAST_SAME or index.is_blind(left, right):
                self.meet(Node(self.found.window, left, right), slot)
        elif index.is_known(side, row):
            return
        elif min(left, right) >= 0:  # a pair that is not sure is still one boundary, not one of each side's own
            self.meet(Node(self.found.window, left, right), slot)
        else:
            self.meet(Node(self.found.window, None, event) if side == SUSPECT else Node(self.found.window, event, None), slot)

    def _results(self, node: Node) -> Results:
        index = self.index
        kinds = [index.window(side).kind[event] for side, event in ((REFERENCE, node.left), (SUSPECT, node.right)) if event is not None]
        if READ in kinds:
            return Results.TOLD
        if node.left is None or node.right is None or not self._is_pair(node.left, node.right):
            return Results.ALONE if self._carriers(node) else Results.SAME
        if index.is_blind(node.left, node.right):
            return Results.UNKNOWN
        if not index.sure(node.left):
            return Results.DIFFER if self._carriers(node) else Results.SAME
        return Results.DIFFER if index.aligned.differs[int(index.pair_of[node.left])] else Results.SAME

    def _is_pair(self, left: int, right: int) -> bool:
        return bool(self.index.aligned.left[left] == right)

    def _count(self, node: Node, results: Results) -> None:
        """Note the first boundary of each kind that counts."""
        for side, event in ((REFERENCE, node.left), (SUSPECT, node.right)):
            if event is None:
                continue
            window = self.index.window(side)
            if results is Results.TOLD:
                self.found.reached.setdefault("read", node)
            elif window.kind[event] == COLLECTIVE:
                self.found.reached.setdefault("collective", node)
            elif window.phase[event] == OPTIMIZER_PHASE and (window.direction[window.outputs(event)] == MUT).any():
                self.found.reached.setdefault("update", node)


def _is_state(index: WindowIndex, node: Node) -> bool:
    return any(index.is_state(side, event) for side, event in ((REFERENCE, node.left), (SUSPECT, node.right)) if event is not None)


def _outputs(index: WindowIndex, side: int, event: int) -> list[int]:
    rows: list[int] = index.window(side).outputs(event).tolist()
    return rows


def _losses(index: WindowIndex, side: int) -> set[int]:
    """Rows that hold what a backward pass of the window starts from."""
    flow = index.flow(side)
    window = flow.window
    events = starts(window).tolist()
    reads = [row for event in events for row in range(int(window.first[event]), int(window.first[event + 1])) if window.storage[row] >= 0]
    return {writer for row in reads if not window.written[row] for writer in flow.producers(row)[0]}
