"""From a difference that matters up to where it comes from: through the producers of the differing inputs to the root.

Works over all windows, on both sides alike: no rule knows which side is called the suspect. A walk ends where all inputs
are the same (the operator itself, its arguments, its precision, its random state), where bytes changed without a writer,
where nothing observed wrote them, or where one side does work the other lacks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from opguard_core.align import slots
from opguard_core.align.columns import PHASES, Window
from opguard_core.align.timeline import REFERENCE, SUSPECT, Row, Timeline
from opguard_core.certify.generated import OPERATORS
from opguard_core.certify.handles import arguments_differ
from opguard_core.certify.lone import as_cast, takes_hold
from opguard_core.certify.roots import PRODUCER, Node, Root, merged
from opguard_core.certify.standing import Rows
from opguard_core.certify.unseen import doubts, is_state
from opguard_core.ids import Origin

MAX_NODES = 20_000
"""Events looked at in one walk; real ones end after a handful."""

Producers = list[list[Row]]
"""Rows that wrote a differing input, newest first: of the reference, of the suspect."""


@dataclass(frozen=True)
class Source:
    """The differing input that a walk follows.

    Attributes:
        consumer: The pair that reads it.
        slot: Its name.
        rows: What each side reads.
        producers: Who wrote that, newest first.
    """

    consumer: Node
    slot: str
    rows: tuple[Row, Row]
    producers: Producers


@dataclass
class Walk:
    """State of one walk.

    Attributes:
        queue: Nodes to look at, with the pair whose input led there and that input's slot.
        seen: Nodes looked at, each with that pair.
        roots: What was found.
        unseen: Differing inputs whose producers the mode did not look into.
    """

    queue: deque[tuple[Node, Source | None]] = field(default_factory=deque)
    seen: dict[Node, Node | None] = field(default_factory=dict)
    roots: list[Root] = field(default_factory=list)
    unseen: list[Source] = field(default_factory=list)

    def push(self, node: Node, source: Source | None) -> None:
        """Look at a node later, once."""
        if node not in self.seen:
            self.seen[node] = None if source is None else source.consumer
            self.queue.append((node, source))


class RootWalk:
    """Root walks over one rank pair.

    Args:
        timeline: All its windows.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.rows = Rows(timeline)

    def from_pair(self, node: Node) -> list[Root]:
        """Roots of a differing pair, earliest first; empty when the walk was cut off."""
        walk = Walk()
        walk.push(node, None)
        return self._finish(walk)

    def from_slots(self, node: Node, left_row: int, right_row: int) -> list[Root]:
        """Roots of one differing input of a pair (of a state boundary, say), earliest first; empty when cut off."""
        walk = Walk(seen={node: None})
        self._input(walk, node, left_row, right_row)
        return self._finish(walk)

    def _finish(self, walk: Walk) -> list[Root]:
        while walk.queue:
            if len(walk.seen) > MAX_NODES:
                return []
            node, source = walk.queue.popleft()
            if node.is_pair and self.rows.index(node.window).is_blind(*node.both):
                self._blind(walk, node)
            elif node.is_pair:
                self._pair(walk, node, walk.seen[node])
            else:
                assert source is not None, "only an input leads to work that one side does alone"
                self._lone(walk, node, source)
        if not walk.roots and walk.unseen:
            walk.roots.append(self._unlooked(min(walk.unseen, key=lambda source: self.rows.order(source.consumer))))
        if not walk.roots:  # a circle: the same updates in another order
            first = min(walk.seen, key=self.rows.order)
            walk.roots.append(Root(first, Origin.STRUCTURE, self.output_slot(first), consumer=walk.seen[first]))
        found = [as_cast(self.timeline, root) for root in merged(list(dict.fromkeys(walk.roots)))]
        return sorted(found, key=lambda root: self.rows.turn(root.node))

    # -- one pair ------------------------------------------------------------------------------------------------------

    def _pair(self, walk: Walk, node: Node, consumer: Node | None) -> None:
        left, right = node.both
        r, s = self._windows(node)
        before = int(r.rng_before[left]), int(s.rng_before[right])
        if r.rng[left] and s.rng[right] and all(before) and before[0] != before[1]:
            walk.roots.append(Root(node, Origin.RANDOM_STATE, self.output_slot(node), consumer=consumer))
            return
        inputs = self._matched(node, outputs=False)
        differing = np.flatnonzero(inputs.code > slots.LAST_SAME).tolist()
        if not differing:
            walk.roots.append(self._local(node, inputs, consumer))
        for at in differing:
            self._input(walk, node, int(inputs.left[at]), int(inputs.right[at]))

    def _windows(self, node: Node) -> tuple[Window, Window]:
        index = self.rows.index(node.window)
        return index.window(REFERENCE), index.window(SUSPECT)

    def _matched(self, node: Node, *, outputs: bool) -> slots.Matched:
        """Slots of a pair: as aligned, or matched now when the pair is the walk's own."""
        left, right = node.both
        index = self.rows.index(node.window)
        aligned = index.aligned
        if aligned.left[left] == right:
            pair = int(index.pair_of[left])
            whole, part = (aligned.outputs, index.outputs_of(pair)) if outputs else (aligned.inputs, index.inputs_of(pair))
            at = slice(part.start, part.stop)
            return slots.Matched(whole.pair[at], whole.left[at], whole.right[at], whole.code[at])
        return slots.match(*self._windows(node), np.array([left]), np.array([right]), outputs=outputs)

    def _local(self, node: Node, inputs: slots.Matched, consumer: Node | None) -> Root:
        """The origin of a pair that reads the same on both sides and yet gives another result."""
        left, right = node.both
        r, s = self._windows(node)
        outputs = self._matched(node, outputs=True)
        differing = np.flatnonzero(outputs.code > slots.LAST_SAME)[:1]
        other_dtype = (r.dtype[outputs.left[differing]] != s.dtype[outputs.right[differing]]).any()
        cast = ((inputs.code == slots.CAST) & (r.dtype[inputs.left] != s.dtype[inputs.right])).any()
        candidates = [
            ((outputs.code[differing] == slots.PERMUTED).any(), Origin.PERMUTATION),
            *_visible(r, s, left, right, bool(other_dtype or cast)),
        ]
        origins = [str(origin) for holds, origin in candidates if holds] or [str(Origin.OPERATOR), *doubts(r, s, inputs)]
        if r.args[left] != s.args[right] and origins[0] == Origin.OPERATOR:
            origins.append(str(Origin.ARGUMENT))
        return Root(node, origins[0], self.output_slot(node), tuple(origins[1:]), consumer)

    def output_slot(self, node: Node) -> str:
        """Name of the first differing output, else of the first slot, of a node."""
        side, event = node.one
        window = self.timeline.flow(side, node.window).window
        rows = [*window.outputs(event).tolist(), *window.reads(event).tolist()]
        if node.is_pair:
            outputs = self._matched(node, outputs=True)
            rows = [*outputs.right[outputs.code > slots.LAST_SAME].tolist(), *rows]
        return window.text(int(window.slot[rows[0]])) if rows else ""

    def shown_slots(self, root: Root) -> list[str]:
        """Names of the slots in which a root shows its difference: all outputs that differ, where it is an output that does."""
        if not root.node.is_pair:
            return [root.slot]
        window = self._windows(root.node)[SUSPECT]
        outputs = self._matched(root.node, outputs=True)
        names = [window.text(int(window.slot[row])) for row in outputs.right[outputs.code > slots.LAST_SAME].tolist()]
        return names if root.slot in names else [root.slot]

    # -- one differing input -------------------------------------------------------------------------------------------

    def _input(self, walk: Walk, node: Node, left_row: int, right_row: int) -> None:
        rows = (Row(REFERENCE, node.window, left_row), Row(SUSPECT, node.window, right_row))
        producers = [self.timeline.producers(row)[0] for row in rows]
        window = self._windows(node)[SUSPECT]
        slot = window.text(int(window.slot[right_row]))
        silent = [self.rows.silently_changed(row, writers) for row, writers in zip(rows, producers, strict=True)]
        if any(silent):
            origin, other = (Origin.UNOBSERVED_PRODUCER, (str(Origin.MUTATED),)) if all(silent) else (Origin.MUTATED, ())
            walk.roots.append(Root(node, origin, slot, other, walk.seen.get(node), self._producer_nodes(producers)))
        elif not any(producers) or any(not writers and not self.rows.is_known(row) for row, writers in zip(rows, producers, strict=True)):
            walk.roots.append(self._outside(walk, node, rows, slot, lone=any(producers)))
        else:
            self._compare_producers(walk, Source(node, slot, rows, producers))

    def _outside(self, walk: Walk, node: Node, rows: tuple[Row, Row], slot: str, *, lone: bool) -> Root:
        """Nothing observed wrote what differs: it came with the program's state, with its data, or from something unseen."""
        windows = self._windows(node)
        names = [is_state(window, row.row) for window, row in zip(windows, rows, strict=True)]
        phases = {PHASES[window.phase[event]] for window, event in zip(windows, node.both, strict=True)}
        if not any(names) and not lone and self._is_number(windows, node, rows):
            origin, other = Origin.ARGUMENT, Origin.INPUT_DATA
        elif any(names) and not lone:
            origin, other = Origin.INITIAL_STATE, Origin.UNOBSERVED_PRODUCER
        elif phases <= {"data", "forward", "eval"} and not lone:
            origin, other = Origin.INPUT_DATA, Origin.UNOBSERVED_PRODUCER
        else:
            origin, other = Origin.UNOBSERVED_PRODUCER, Origin.INPUT_DATA
        return Root(node, origin, slot, (str(other),), walk.seen.get(node))

    def _is_number(self, windows: tuple[Window, Window], node: Node, rows: tuple[Row, Row]) -> bool:
        """Whether a generated kernel got a number of Python's here: its compiler hands those to it as tensors without dimensions."""
        return all(
            window.operator_text(event).startswith(OPERATORS) and window.text(int(window.shape[row.row])) == ""
            for window, event, row in zip(windows, node.both, rows, strict=True)
        )

    def _compare_producers(self, walk: Walk, source: Source) -> None:
        node, producers = source.consumer, source.producers
        left, right = list(producers[REFERENCE]), list(producers[SUSPECT])
        moved = False
        for row in producers[REFERENCE]:
            partner = self.rows.counterpart(row)
            if partner is None or partner not in right:
                continue
            left.remove(row)
            right.remove(partner)
            unseen = self._may_differ(row, partner)
            if unseen:
                walk.unseen.append(source)
            if self.rows.differs(row) or unseen:
                walk.push(Node(row.window, self.rows.event(row), self.rows.event(partner)), source)
                moved = True
        if any(self.rows.comes_later(row, node) for row in (*left, *right)):
            walk.roots.append(self._stale(walk, source))
            return
        bad_left, bad_right = ([row for row in rows if self.rows.is_missing(row)] for rows in (left, right))
        if bad_left and bad_right:
            self._both(walk, source, bad_left[0], bad_right[0])
        elif bad_left or bad_right:
            for row in bad_left or bad_right:
                self._follow(walk, source, row)
        elif not moved:
            walk.roots.append(self._stale(walk, source))

    # -- operators that mode `trusted` did not look into ---------------------------------------------------------------

    def _may_differ(self, left: Row, right: Row) -> bool:
        """Matched results of a pair that the mode trusts: nobody looked."""
        if left.window != right.window:
            return False
        return self.rows.index(left.window).is_blind(self.rows.event(left), self.rows.event(right))

    def _blind(self, walk: Walk, node: Node) -> None:
        """A pair that nobody looked into: what it visibly does differently, else on through what it reads.

        Only inside its own window: what an earlier window left was compared at that window's end.
        """
        left, right = node.both
        r, s = self._windows(node)
        inputs, outputs = self._matched(node, outputs=False), self._matched(node, outputs=True)
        differing = np.flatnonzero(inputs.code > slots.LAST_SAME).tolist()
        for at in differing:
            self._input(walk, node, int(inputs.left[at]), int(inputs.right[at]))
        if differing:
            return
        for at in np.flatnonzero(inputs.code == slots.UNKNOWN).tolist():
            rows = Row(REFERENCE, node.window, int(inputs.left[at])), Row(SUSPECT, node.window, int(inputs.right[at]))
            producers = [self.timeline.producers(row)[0] for row in rows]
            for row in producers[REFERENCE]:
                partner = self.rows.counterpart(row) if row.window == node.window else None
                if partner is not None and partner in producers[SUSPECT] and (self.rows.differs(row) or self._may_differ(row, partner)):
                    walk.push(Node(row.window, self.rows.event(row), self.rows.event(partner)), Source(node, "", rows, producers))
        visible = _visible(r, s, left, right, bool((r.dtype[outputs.left] != s.dtype[outputs.right]).any()))
        origin = next((origin for holds, origin in visible if holds), None)
        if origin is not None:
            walk.roots.append(Root(node, origin, self.output_slot(node), (str(Origin.OPERATOR), str(Origin.MUTATED)), walk.seen[node]))

    def _unlooked(self, source: Source) -> Root:
        """The first place that was looked at and differs; what made its input was trusted."""
        node, near = source.consumer, self._producer_nodes(source.producers)
        others = (str(Origin.OPERATOR), str(Origin.MUTATED))
        if self.rows.index(node.window).is_state(REFERENCE, node.both[0]):
            # No consumer: the next step's operators, which start from this state, show it no better.
            return Root(self._unstored(source.producers) or node, Origin.UNOBSERVED_PRODUCER, source.slot, others, None, near)
        return Root(node, Origin.UNOBSERVED_PRODUCER, source.slot, others, None, near)

    def rests_on_trust(self, root: Root) -> bool:
        """A structural difference whose values were made, on one side at least, by operators that nobody looked into.

        That both sides had those values, or that one lacked them, is then not known.
        """
        if root.origin != Origin.STRUCTURE:
            return False
        nodes = [node for what, node in root.near if what == PRODUCER] + ([] if root.node.is_pair else [root.node])
        return any(bool(self.timeline.flow(side, node.window).window.blind[event]) for node in nodes for side, event in (node.one,))

    def _both(self, walk: Walk, source: Source, left: Row, right: Row) -> None:
        """Each side's value comes from an operator whose result the other side does not have."""
        node = source.consumer
        unsure = self.rows.sure_node(left) is None and self.rows.sure_node(right) is None
        if unsure and left.window == right.window and self.rows.alike(left, right):
            walk.push(Node(left.window, self.rows.event(left), self.rows.event(right)), source)
            return
        r, s = self._windows(node)
        if unsure and r.op[node.both[0]] != s.op[node.both[1]]:  # other work on other work: what is above is noise
            walk.roots.append(self._stale(walk, source))
            return
        self._follow(walk, source, left)
        self._follow(walk, source, right)

    def _follow(self, walk: Walk, source: Source, row: Row) -> None:
        """Go on from one producer: with its own partner when that is sure, else alone."""
        walk.push(self.rows.sure_node(row) or self.rows.lone_node(row), source)

    def _stale(self, walk: Walk, source: Source) -> Root:
        """Both sides know both values, and yet they read different ones: a stale value, another view, other elements."""
        node, near = source.consumer, self._producer_nodes(source.producers)
        if self.rows.index(node.window).is_state(REFERENCE, node.both[0]):
            return Root(self._unstored(source.producers) or node, Origin.STRUCTURE, source.slot, (), node, near)
        permuted = (self._matched(node, outputs=True).code == slots.PERMUTED).any()
        return Root(node, Origin.PERMUTATION if permuted else Origin.STRUCTURE, source.slot, (), walk.seen.get(node), near)

    def _unstored(self, producers: Producers) -> Node | None:
        """State whose values both sides know: the later of its two writers, as a pair whose result only one side stored if it is one.

        A later writer without a partner is work that the other side lacks (a copy of what both sides have), not the earlier one's.
        """
        writers = [row for rows in producers for row in rows[:1]]
        found = [self.rows.pair_node(row) for row in writers]
        if not any(found):
            return None
        nodes = [node or self.rows.lone_node(row) for node, row in zip(found, writers, strict=True)]
        return max(nodes, key=self.rows.order)

    def _producer_nodes(self, producers: Producers) -> tuple[tuple[str, Node], ...]:
        return tuple((PRODUCER, self.rows.lone_node(row)) for rows in producers for row in rows[:1])

    # -- one event that only one side has ------------------------------------------------------------------------------

    def _lone(self, walk: Walk, node: Node, source: Source) -> None:
        """Up through the work that only this side does, to where it takes hold of what the other side goes on with.

        That is the extra operator. Work that never touches the other side's value makes a new one from scratch: then the
        other side reads a stale value, and its reader is the first place that shows it.
        """
        side, event = node.one
        window = self.timeline.flow(side, node.window).window
        missing: list[Row] = []
        for row in window.reads(event).tolist():
            at = Row(side, node.window, row)
            if not self.rows.is_known(at):
                missing += [producer for producer in self.timeline.producers(at)[0] if self.rows.is_missing(producer)]
        extra = Root(node, Origin.STRUCTURE, self.output_slot(node), consumer=source.consumer)
        if takes_hold(self.rows, node, source.rows[1 - side], missing):
            walk.roots.append(extra)
        elif missing:
            for producer in missing:
                self._follow(walk, source, producer)
        elif self.rows.index(source.consumer.window).is_state(REFERENCE, source.consumer.both[0]):
            walk.roots.append(extra)
        else:
            walk.roots.append(self._stale(walk, source))


def _visible(r: Window, s: Window, left: int, right: int, other_dtype: bool) -> list[tuple[bool, Origin]]:
    """What a pair visibly does differently, whatever its inputs hold; the first that holds is told."""
    return [
        (bool(r.op[left] != s.op[right]), Origin.STRUCTURE),
        (other_dtype, Origin.DTYPE),
        (bool(arguments_differ(r, s, left, right)), Origin.ARGUMENT),
        # A tensor that only one side hands in (to a `cat`, say) is no other result for equal inputs.
        (len(r.reads(left)) != len(s.reads(right)), Origin.STRUCTURE),
    ]
