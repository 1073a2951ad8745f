"""Puts what was found into the words of the answer: places, steps, operators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from opguard_core.align.columns import PHASES, Window
from opguard_core.align.steps import Steps
from opguard_core.align.timeline import REFERENCE, SUSPECT, Timeline
from opguard_core.certify.devicework.kernels import launched
from opguard_core.certify.findings import RankFindings
from opguard_core.certify.generated import OPERATORS, differing, lines_made_from
from opguard_core.certify.places import ChangedFiles, Places, place_of
from opguard_core.certify.roots import Node, Root
from opguard_core.certify.verdict import Pivot, Place, Sides
from opguard_core.ids import SIDES


class Describer:
    """Places and words for one rank pair.

    Args:
        timeline: Its windows.
        rank: Rank the answer names.
    """

    def __init__(self, timeline: Timeline, rank: int) -> None:
        self.timeline = timeline
        self.rank = rank
        traces = [columns.trace for columns in timeline.columns]
        changed = ChangedFiles.of(*traces).changed
        self.places = (Places(traces[REFERENCE], changed), Places(traces[SUSPECT], changed))
        self._steps = (Steps(traces[REFERENCE]), Steps(traces[SUSPECT]))

    def _window(self, side: int, node: Node) -> Window:
        return self.timeline.flow(side, node.window).window

    def place(self, side: int, node: Node) -> Place | None:
        """Place of one side of a node; None where that side has nothing or no frames are known."""
        event = node.right if side == SUSPECT else node.left
        if event is None:
            return None
        return self._generated(node)[side] or self._event_place(side, self._window(side, node), event)

    def _generated(self, node: Node) -> tuple[Place | None, Place | None]:
        """Of a generated kernel that both sides have, the lines by which they differ; None where there are none."""
        if node.left is None or node.right is None or not self.operator(SUSPECT, node).startswith(OPERATORS):
            return None, None
        frames = [
            self.places[side].frames(int(self._window(side, node).stack[event]))
            for side, event in ((REFERENCE, node.left), (SUSPECT, node.right))
        ]
        found = differing(*map(lines_made_from, frames))
        return None if found[0] is None else place_of(found[0]), None if found[1] is None else place_of(found[1])

    def _event_place(self, side: int, window: Window, event: int) -> Place | None:
        return self.places[side].place(int(window.stack[event]), int(window.user_frame[event]), int(window.library_frame[event]))

    def operator(self, side: int, node: Node) -> str:
        """Full operator name of one side of a node; empty where that side has nothing."""
        event = node.right if side == SUSPECT else node.left
        return "" if event is None else self._window(side, node).operator_text(event)

    def shown(self, node: Node, *, side: int = SUSPECT) -> str:
        """Operator and line of a node in a few words, of the other side where this one has nothing."""
        place = self.place(side, node) or self.place(1 - side, node)
        operator = self.operator(side, node) or self.operator(1 - side, node)
        return f"{operator} at {place.file}:{place.line}" if place is not None else operator

    def boundary(self, node: Node, step: int, slot: str) -> dict[str, Any]:
        """One slot of a node, as the answer names boundaries that are no pivot."""
        return {"rank": self.rank, "step": step, "slot": slot, **self._sides(node)}

    def bare(self, node: Node) -> dict[str, Any]:
        """A node without its step, which costs a pass over the trace."""
        return {"rank": self.rank, **self._sides(node)}

    def _sides(self, node: Node) -> dict[str, Any]:
        """Operator, event numbers and places of a node."""
        places = [self.place(side, node) for side in (REFERENCE, SUSPECT)]
        return {
            "operator": self.operator(SUSPECT, node) or self.operator(REFERENCE, node),
            "seq": {name: self.seq(side, node) for side, name in enumerate(SIDES)},
            **{name: None if place is None else asdict(place) for name, place in zip(SIDES, places, strict=True)},
        }

    def seq(self, side: int, node: Node) -> int | None:
        """Event number of one side of a node."""
        event = node.right if side == SUSPECT else node.left
        return None if event is None else int(self._window(side, node).seq[event])

    def steps(self, nodes: Iterable[Node]) -> dict[Node, int]:
        """Reported step of each node, on the suspect's side where it has one.

        Cost: one pass over each trace up to the last node.
        """
        found: dict[Node, int] = {}
        asked: tuple[dict[Node, tuple[int, int]], dict[Node, tuple[int, int]]] = ({}, {})
        for node in nodes:
            side = SUSPECT if node.right is not None else REFERENCE
            asked[side][node] = (node.window, self.seq(side, node) or 0)
        for side in (REFERENCE, SUSPECT):
            steps = self._steps[side].of(asked[side].values())
            found.update({node: steps[key] for node, key in asked[side].items()})
        return found

    def pivot(self, root: Root, step: int, consumers: Iterable[Node] = ()) -> Pivot:
        """The answer's object for one root."""
        node = root.node
        side = SUSPECT if node.right is not None else REFERENCE
        window = self._window(side, node)
        event = node.right if node.right is not None else node.left
        assert event is not None
        sides = [(REFERENCE, node.left), (SUSPECT, node.right)]
        stacks = [None if own is None else self.places[at].stack(int(self._window(at, node).stack[own])) for at, own in sides]
        seqs = [self.seq(at, node) for at, _ in sides]
        return Pivot(
            rank=self.rank,
            step=step,
            microbatch=int(window.microbatch[event]),
            phase=PHASES[window.phase[event]],
            operator=window.operator_text(event),
            slot=root.slot,
            origin=str(root.origin),
            origin_alternatives=[str(origin) for origin in root.alternatives],
            stream=None,
            thread=window.text(int(window.lane[event])),
            stack=Sides(*stacks),
            reference=self.place(REFERENCE, node),
            suspect=self.place(SUSPECT, node),
            forward=self._forward(node),
            near=self._near(root, consumers),
            seq=Sides(*seqs),
            kernels=self._kernels(seqs),
        )

    def _kernels(self, seqs: list[int | None]) -> dict[str, Any] | None:
        """What a boundary launched on each side; None where nothing watched."""
        reference, suspect = (columns.trace for columns in self.timeline.columns)
        found = launched(reference, suspect, (seqs[REFERENCE], seqs[SUSPECT]))
        return None if found is None else found.to_dict()

    def _forward(self, node: Node) -> Sides | None:
        """Forward places of a backward boundary; None when neither side has one."""
        found: list[Place | None] = []
        for side, event in ((REFERENCE, node.left), (SUSPECT, node.right)):
            place = None
            if event is not None:
                window = self._window(side, node)
                if window.forward[event] >= 0:
                    place = self._event_place(side, window, int(window.forward[event]))
            found.append(place)
        return Sides(*found) if any(place is not None for place in found) else None

    def _near(self, root: Root, consumers: Iterable[Node]) -> list[dict[str, Any]]:
        """Other boundaries to look at: whoever first reads the difference, and who wrote what was read."""
        near = []
        if root.consumer is not None and root.consumer != root.node:
            near.append({"what": "first-consumer", **self._sides(root.consumer)})
        near += [{"what": what, **self._sides(node)} for what, node in root.near]
        near += [{"what": "consumer", **self._sides(node)} for node in consumers if node not in (root.node, root.consumer)]
        return near


Judged = list[tuple[RankFindings, Describer]]
"""What was found on each rank pair, and the words for it."""
