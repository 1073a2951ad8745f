"""Where a difference begins, as values: the nodes a root walk stands on, and the roots it ends in."""

from __future__ import annotations

from dataclasses import dataclass

from opguard_core.align.timeline import REFERENCE, SUSPECT
from opguard_core.ids import Origin

PRODUCER = "producer"
"""Of `Root.near`: who made what a side reads."""


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

    @property
    def is_pair(self) -> bool:
        """Both sides have something here."""
        return self.left is not None and self.right is not None

    @property
    def both(self) -> tuple[int, int]:
        """Reference and suspect event of a pair."""
        assert self.left is not None and self.right is not None, "a lone event has no partner"
        return self.left, self.right

    @property
    def one(self) -> tuple[int, int]:
        """(side, event): the suspect's where it has one."""
        side, event = (SUSPECT, self.right) if self.right is not None else (REFERENCE, self.left)
        assert event is not None, "a node without an event"
        return side, event


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


def merged(roots: list[Root]) -> list[Root]:
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
