"""A first difference of a backward pass whose own forward differs as well: then the forward is the first.

A loss that nobody reads reaches nothing that counts, and what an operator hands to its own backward need not be a tensor (a factor, a
count, an index to ignore): the data alone would have the difference begin in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opguard_core.align import slots
from opguard_core.align.timeline import REFERENCE, SUSPECT
from opguard_core.certify.index import WindowIndex
from opguard_core.certify.root import RootWalk
from opguard_core.certify.roots import PRODUCER, Node, Root
from opguard_core.ids import Origin

MAX_READERS = 64
"""Pairs that read what a forward made, looked at for whether it differs."""


def begun(walk: RootWalk, index: WindowIndex, roots: list[Root], unfiltered: Callable[[list[Root]], list[Root]]) -> list[Root]:
    """Roots of a forward difference that reached nothing by its data, if its own backward is the first root; else none.

    Args:
        walk: Over the rank pair.
        index: The window that was judged.
        roots: What was found, the earliest first; perhaps of an earlier window.
        unfiltered: Leaves out what filters hide.
    """
    if roots[0].node.window != index.window(REFERENCE).number:
        return []
    for backward in (roots[0].node, producers(roots[0])):
        forward = own_forward(index, backward)
        if forward is None or vanishes(index, forward):
            continue
        for node in showing(index, forward)[:MAX_READERS]:
            found = unfiltered(walk.from_pair(node))
            if found and found[0].node == forward:
                return found
        if is_alone(index, forward) and walk.rows.lacks_results(forward):
            return unfiltered([Root(forward, str(Origin.STRUCTURE), walk.output_slot(forward), consumer=roots[0].node)])
    return []


def own_forward(index: WindowIndex, node: Node) -> Node | None:
    """What ran forward, in the same window, of what a node runs backward; None if that is nothing, or not one thing on both sides.

    Work that each side does alone stands in the other's place.

    Args:
        index: The node's window.
        node: Any node; its events need not be a pair.
    """
    events = [(side, event) for side, event in ((REFERENCE, node.left), (SUSPECT, node.right)) if event is not None]
    found = [_standing(index, side, int(index.window(side).forward[event])) for side, event in events]
    if len(found) == 2 and all(one is not None and not one.is_pair for one in found):
        left, right = (one for one in found if one is not None)
        return Node(node.window, left.left, right.right)
    return found[0] if len(set(found)) == 1 else None


def producers(root: Root) -> Node:
    """Who made, in its own window, what each side reads, of a root that is a read of different values; nobody for other roots."""
    made = [node for what, node in root.near if what == PRODUCER and node.window == root.node.window]
    left = next((node.left for node in made if node.left is not None), None)
    return Node(root.node.window, left, next((node.right for node in made if node.right is not None), None))


def is_alone(index: WindowIndex, node: Node) -> bool:
    """No event of a node has a partner."""
    return node.left is None or node.right is None or index.sides(REFERENCE, node.left) != node.both


def showing(index: WindowIndex, node: Node) -> list[Node]:
    """Pairs that show whether a node of the forward pass differs: the pair itself, or those that read what one side's event makes.

    Args:
        index: The node's window.
        node: As `own_forward` gives it.
    """
    if node.is_pair:
        pair = int(index.pair_of[node.both[0]])
        # A later result alone (a workspace, perhaps) is no difference that may carry a verdict, see `RankJudge._auxiliary`.
        return [] if is_alone(index, node) or index.differing_outputs(pair)[:1] != [index.outputs_of(pair).start] else [node]
    return list(dict.fromkeys(_readers(index, *node.one)))


def vanishes(index: WindowIndex, node: Node) -> bool:
    """Whether a pair that reads what a node makes differently gives the same all the same: the forward difference ended there."""
    events = [(side, event) for side, event in ((REFERENCE, node.left), (SUSPECT, node.right)) if event is not None]
    pairs = [int(index.pair_of[reader.both[0]]) for side, event in events for reader in _readers(index, side, event)]
    return any(len(index.outputs_of(pair)) and not index.aligned.differs[pair] for pair in pairs)


def _readers(index: WindowIndex, side: int, event: int) -> Iterator[Node]:
    """Pairs that read what an event makes, and read something else on the other side."""
    flow, codes = index.flow(side), index.read_codes[side]
    for read in (read for row in flow.window.outputs(event).tolist() for read in flow.consumers(row) if codes[read] > slots.LAST_SAME):
        reader = _standing(index, side, int(flow.window.event[read]))
        if reader is not None and reader.is_pair:
            yield reader


def _standing(index: WindowIndex, side: int, event: int) -> Node | None:
    if event < 0:
        return None
    left, right = index.sides(side, event)
    return Node(index.window(side).number, left if left >= 0 else None, right if right >= 0 else None)
