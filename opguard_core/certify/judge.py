"""Judges one rank pair: window by window to the first difference that matters, and from there to its root."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opguard_core.align import slots
from opguard_core.align.aligned import Aligned
from opguard_core.align.columns import COLLECTIVE, KINDS, OPTIMIZER_PHASE, READ, Flags, Ints
from opguard_core.align.timeline import REFERENCE, SUSPECT, Row, Step, Timeline
from opguard_core.certify.ambiguity import BY_POSITION, rivals
from opguard_core.certify.findings import MAX_HARMLESS, Harmless, RankFindings, Remains, Shares
from opguard_core.certify.index import WindowIndex
from opguard_core.certify.matters import GUESS, Matters, Spread
from opguard_core.certify.root import Node, Root, RootWalk
from opguard_core.certify.statecompare import COUNTED, StateBoundary, compare_state, kind_of
from opguard_core.ids import Kind

Swallow = Callable[[Node, str], bool]
"""Whether a filter hides a differing pair, given its first differing slot."""

MAX_STATE_WALKS = 64
"""Pieces of differing state that are followed to their roots."""

_GAP = KINDS.index(Kind.GAP)


class RankJudge:
    """One rank pair under judgement.

    Args:
        timeline: Its windows.
        findings: Filled while judging.
        swallow: Benign filters.
    """

    def __init__(self, timeline: Timeline, findings: RankFindings, swallow: Swallow) -> None:
        self.timeline = timeline
        self.findings = findings
        self.walk = RootWalk(timeline)
        self._swallow = swallow
        self._harmless_lefts: dict[int, set[int]] = {}
        self._swallowed: set[Node] = set()
        self._held: list[Root] = []
        self._held_since: int | None = None

    def run(self, progress: Callable[[int], None]) -> RankFindings:
        """Judge until the first difference that matters, or the end.

        Args:
            progress: Called with the number of events of each window done.
        """
        last: tuple[int | None, int | None] = (None, None)
        for step in self.timeline.steps():
            last = (step.number if step.reference is not None else last[0], step.number if step.suspect is not None else last[1])
            if step.aligned is None:
                self.findings.one_sided[REFERENCE if step.reference is not None else SUSPECT].append(step.number)
                continue
            self._window(step)
            progress(len(step.aligned.reference.window) + len(step.aligned.suspect.window))
            if self.findings.pivot:
                break
        self.findings.completed = [number for number in self.findings.windows if all(end is not None and number < end for end in last)]
        if not self.findings.pivot and self._held:
            self._conclude(self._held)
        if not self.findings.pivot:
            self._settle()
        return self.findings

    # -- one window ----------------------------------------------------------------------------------------------------

    def _window(self, step: Step) -> None:
        aligned = step.aligned
        assert aligned is not None
        findings = self.findings
        findings.windows.append(step.number)
        findings.pairs += len(aligned.pairs)
        findings.banded += aligned.banded
        index = WindowIndex(aligned)
        self.walk.adopt(step.number, index)
        state = compare_state(aligned)
        self._note_state(step.number, state)
        ledgers = self.timeline.ledgers
        matters = Matters(index, state, (ledgers[REFERENCE].lifetimes, ledgers[SUSPECT].lifetimes))
        findings.shares.append(shares(aligned, index))
        roots, weak = self._first_that_matters(step.number, index, matters)
        if not roots:
            roots = self._state_roots(step.number, state)
        roots = self._rank_with_held(step.number, roots)
        if roots:
            self._conclude(roots)
        else:
            findings.weak += weak
        self._count(step, index, roots[0].node if roots else None)

    def _conclude(self, roots: list[Root]) -> None:
        node = roots[0].node
        if node.left is not None and node.right is not None and roots[0].consumer is None:  # else its consumer chose it
            self.findings.rivals = [Node(node.window, *pair) for pair in rivals(self.walk.index(node.window), node.left, node.right)]
        self.findings.pivot = roots
        self.findings.clock = self._clock(roots[0].node)

    def _state_roots(self, number: int, state: StateBoundary) -> list[Root]:
        """Roots of a state difference; one that no operator shows is held back, for the first operator that reads it."""
        if self._held:
            return []
        roots = self._from_state(number, state)
        if roots and all(root.consumer is not None and self._is_state(root.consumer) for root in roots):
            self._held = roots
            return []
        return roots

    def _is_state(self, node: Node) -> bool:
        return node.left is not None and self.walk.index(node.window).is_state(REFERENCE, node.left)

    def _rank_with_held(self, number: int, roots: list[Root]) -> list[Root]:
        """A held state difference is the first one unless an operator shows it in the very next window."""
        if not self._held or self._held_since is None:
            self._held_since = number if self._held else None
            return roots
        return roots if roots and number <= self._held_since + 1 else self._held if roots else []

    def _first_that_matters(self, number: int, index: WindowIndex, matters: Matters) -> tuple[list[Root], list[tuple[str, Node]]]:
        aligned = index.aligned
        weak: list[tuple[str, Node]] = []
        for left in _candidates(index).tolist():
            node = Node(number, left, int(aligned.left[left]))
            pair = int(index.pair_of[left])
            differing = index.differing_outputs(pair)
            window = aligned.suspect.window
            slot = window.text(int(window.slot[aligned.outputs.right[differing[0]]])) if differing else ""
            if self._is_swallowed(node, slot):
                continue
            spread = matters.spread(left)
            if spread.sink is None and spread.exhausted:
                weak.append(("search-exhausted", node))
                continue
            if spread.sink is None:
                self._add_harmless(index, matters, node, slot, differing)
                continue
            slug = self._weakness(index, matters, left, differing, spread)
            if slug:
                weak.append((slug, node))
                continue
            doubtful = {other for name, other in weak if name == "auxiliary-output"}
            found = self.walk.from_pair(node)
            roots = [root for root in self._unfiltered(found) if root.node not in doubtful]
            weak += [("filtered-difference", root.node) for root in found if root.node in self._swallowed][:1]
            if roots:
                self.findings.first_consumers = [Node(number, *consumer) for consumer in spread.consumers]
                return roots, []
        return [], weak

    def _weakness(self, index: WindowIndex, matters: Matters, left: int, differing: list[int], spread: Spread) -> str:
        """Why a difference that reaches something that counts cannot carry a verdict; empty when it can."""
        if not index.sure(left) or (spread.sink is not None and spread.sink.kind == GUESS):
            return "low-confidence"
        if not self._auxiliary(index, left, differing):
            return ""
        proven = any(self._only_this_differs(index, matters, consumer[0], left) for consumer in spread.consumers)
        return "" if proven else "auxiliary-output"

    def _auxiliary(self, index: WindowIndex, left: int, differing: list[int]) -> bool:
        """Inputs and first output are the same and only a later returned tensor differs: a workspace, perhaps."""
        aligned = index.aligned
        pair = int(index.pair_of[left])
        outputs = index.outputs_of(pair)
        if not differing or aligned.reads_differ[pair] or differing[0] == outputs.start:
            return False
        window = aligned.suspect.window
        returned = [window.text(int(window.slot[aligned.outputs.right[at]])).startswith("out.") for at in differing]
        return all(returned) and bool(aligned.reference.window.args[left] == window.args[aligned.left[left]])

    def _only_this_differs(self, index: WindowIndex, matters: Matters, consumer: int, left: int) -> bool:
        """A consumer gives another result, or tells Python another value, although all else it reads is the same."""
        aligned = index.aligned
        pair = int(index.pair_of[consumer])
        sink = matters.own_sink(consumer)
        if not aligned.differs[pair] and (sink is None or sink.kind == GUESS):
            return False
        writer = aligned.reference.writer
        events = aligned.reference.window.event
        for at in index.inputs_of(pair):
            source = int(writer[aligned.inputs.left[at]])
            if aligned.inputs.code[at] > slots.LAST_SAME and (source < 0 or int(events[source]) != left):
                return False
        return True

    def _from_state(self, number: int, state: StateBoundary) -> list[Root]:
        """Roots of state that differs although no pair of operators did: an update that is missing, or done in vain."""
        roots: list[Root] = []
        for slot in state.differing()[:MAX_STATE_WALKS]:
            if slot.counts:
                roots += self.walk.from_slots(Node(number, slot.left_event, slot.right_event), slot.left, slot.right)
        kept = self._unfiltered(roots)
        self.findings.weak += [("filtered-difference", root.node) for root in roots if root.node in self._swallowed][:1]
        return sorted(kept, key=lambda root: self.walk.order(root.node))

    def _is_swallowed(self, node: Node, slot: str) -> bool:
        """A filter hides the difference at a node; each node counts as one hit."""
        if node not in self._swallowed and self._swallow(node, slot):
            self._swallowed.add(node)
            self.findings.swallowed += 1
        return node in self._swallowed

    def _unfiltered(self, roots: list[Root]) -> list[Root]:
        """Roots that no filter hides; what follows from a hidden one cannot be told from it, and is not called equal."""
        return [root for root in roots if not self._is_swallowed(root.node, root.slot)]

    # -- what is harmless for now --------------------------------------------------------------------------------------

    def _add_harmless(self, index: WindowIndex, matters: Matters, node: Node, slot: str, differing: list[int]) -> None:
        aligned = index.aligned
        assert node.left is not None
        if self._unrelated(index, matters, node.left, differing):
            return
        lefts = self._harmless_lefts.setdefault(node.window, set())
        lefts.add(node.left)
        if len(self.findings.harmless) >= MAX_HARMLESS:
            self.findings.harmless_more += 1
            return
        remains = []
        for side, rows in ((REFERENCE, aligned.outputs.left), (SUSPECT, aligned.outputs.right)):
            window = index.window(side)
            remains += [Remains(side, int(window.storage[rows[at]]), node.window, int(rows[at])) for at in differing]
        first = not any(self._from_harmless(index, at) for at in index.inputs_of(int(index.pair_of[node.left])))
        self.findings.harmless.append(Harmless(node, slot, first, int(aligned.confidence[node.left]), tuple(remains)))

    def _unrelated(self, index: WindowIndex, matters: Matters, left: int, differing: list[int]) -> bool:
        """Two events paired by their place alone that do not work on the same quantity: no difference at all.

        Each of their results exists on the other side as well, or what they read differently has no common origin.
        """
        outputs, pair = index.aligned.outputs, int(index.pair_of[left])
        if index.aligned.how[left] not in BY_POSITION:
            return False
        known = [index.is_known(REFERENCE, int(outputs.left[at])) and index.is_known(SUSPECT, int(outputs.right[at])) for at in differing]
        return all(known) or bool(index.aligned.reads_differ[pair] and not matters.same_quantity(pair))

    def _from_harmless(self, index: WindowIndex, at: int) -> bool:
        inputs = index.aligned.inputs
        if inputs.code[at] <= slots.LAST_SAME:
            return False
        producers, _ = self.timeline.producers(Row(REFERENCE, index.aligned.reference.window.number, int(inputs.left[at])))
        for producer in producers:
            event = int(self.timeline.flow(REFERENCE, producer.window).window.event[producer.row])
            if event in self._harmless_lefts.get(producer.window, ()):
                return True
        return False

    def _settle(self) -> None:
        """At the end: what is gone is isolated, what is still there is unresolved."""
        kept = []
        for harmless in self.findings.harmless:
            alive = any(self._is_alive(remains) for remains in harmless.remains)
            if alive and harmless.confidence >= 2:
                self.findings.unresolved.append(harmless)
            else:
                kept.append(harmless)
        self.findings.harmless = kept
        if self.findings.windows and not any(self.findings.one_sided):
            self._unread_updates(self.findings.windows[-1])

    def _unread_updates(self, number: int) -> None:
        """State written in the last window, after its last state boundary, that the other side does not have at all."""
        if number in self.findings.completed:
            return
        index = self.walk.index(number)
        for side in (REFERENCE, SUSPECT):
            flow = index.flow(side)
            window = flow.window
            named = np.flatnonzero(window.output & (window.tensor != 0) & (window.storage >= 0))
            for storage in np.unique(window.storage[named]).tolist():
                for row in flow.last_writes(storage):
                    event = int(window.event[row])
                    counts = kind_of(window.text(int(window.tensor[row]))) in COUNTED
                    if counts and window.known[row] and self.walk.is_missing(Row(side, number, row)):
                        node = Node(number, *index.sides(side, event)) if index.partner(side, event) >= 0 else _lone(number, side, event)
                        self.findings.unresolved.append(Harmless(node, window.text(int(window.slot[row])), True, 3, ()))
                        return

    def _is_alive(self, remains: Remains) -> bool:
        return self.timeline.ledgers[remains.side].shows(remains.storage, remains.window, remains.row)

    # -- counting ------------------------------------------------------------------------------------------------------

    def _note_state(self, number: int, state: StateBoundary) -> None:
        findings = self.findings
        for side in (REFERENCE, SUSPECT):
            if not state.present[side]:
                findings.state_missing[side].append(number)
        findings.state_slots += state.count_same()
        findings.updates += state.count_same("param")
        lone = state.reference_only.get("param", []), state.suspect_only.get("param", [])
        if any(lone):
            findings.state_unmatched.append((number, *lone))

    def _clock(self, node: Node) -> int:
        index = self.walk.index(node.window)
        sides = [(REFERENCE, node.left), (SUSPECT, node.right)]
        return min(int(index.window(side).clock[event]) for side, event in sides if event is not None)

    def _count(self, step: Step, index: WindowIndex, pivot: Node | None) -> None:
        """Add a window to the equal prefix: all of it, or what stands before the pivot."""
        aligned = index.aligned
        findings = self.findings
        outputs, reads = aligned.outputs, aligned.inputs
        equal = ~aligned.differs
        within = np.ones(len(aligned.pairs), bool)
        if pivot is not None:
            limit = self.walk.order(pivot)
            within = np.array([(step.number, order) < limit for order in _orders(index).tolist()], bool)
        kept = equal & within
        findings.prefix.pairs += int(kept.sum())
        for matched in (outputs, reads):
            part = kept[matched.pair] & matched.same & (matched.code != slots.UNKNOWN)
            findings.prefix.tensors += int(part.sum())
            findings.prefix.bytes += int(aligned.suspect.window.nbytes[matched.right[part]].sum())
        is_read = aligned.reference.window.kind[aligned.pairs] == READ
        findings.reads += int((is_read & within & ~aligned.reads_differ).sum())
        for side, event in ((REFERENCE, pivot.left if pivot else None), (SUSPECT, pivot.right if pivot else None)):
            window = index.window(side)
            before = pivot is None or pivot.window == step.number
            seq = int(window.seq[event]) if event is not None and before else int(window.seq[-1])
            findings.gaps[side] += int(((window.kind == _GAP) & (window.seq <= seq)).sum())
            table = step.suspect if side == SUSPECT else step.reference
            assert table is not None
            findings.dropped[side] += sum(min(last, seq) - first + 1 for first, last in table.dropped if first <= seq)


def _orders(index: WindowIndex) -> Ints:
    """`WindowIndex.order` of all pairs."""
    aligned = index.aligned
    right = aligned.left[aligned.pairs]
    return 2 * (np.arange(len(right)) + np.searchsorted(np.sort(right), right))


def _candidates(index: WindowIndex) -> Ints:
    """Reference events of pairs that may show a difference, in an order that does not depend on the sides' names."""
    aligned = index.aligned
    window = aligned.reference.window
    kind, phase = window.kind[aligned.pairs], window.phase[aligned.pairs]
    leaving: Flags = (kind == READ) | (kind == COLLECTIVE) | (phase == OPTIMIZER_PHASE)
    at = np.flatnonzero(aligned.differs | (aligned.reads_differ & leaving))
    return aligned.pairs[at[np.argsort(_orders(index)[at], kind="stable")]]


def shares(aligned: Aligned, index: WindowIndex) -> Shares:
    """How much of a window's non-trivial results found a counterpart."""
    telling, paired, accounted = [], [], []
    for side, partner in ((REFERENCE, aligned.left), (SUSPECT, aligned.right)):
        window = index.window(side)
        rows = np.flatnonzero(window.output & window.telling & window.comparable[window.event])
        at = index.output_index[side][rows]
        alike = (at >= 0) & (aligned.outputs.code[at] <= slots.LAST_SAME) if len(aligned.outputs.code) else np.zeros(len(rows), bool)
        open_rows = rows[~alike]
        values = aligned.suspect_values if side == REFERENCE else aligned.reference_values
        unknown = open_rows[~np.isin(window.value[open_rows], values)]
        has_result, unaccounted = np.zeros((2, len(window)), bool)
        has_result[window.event[rows]] = True
        unaccounted[window.event[unknown]] = True
        telling.append(int(has_result.sum()))
        paired.append(int((has_result & (partner >= 0)).sum()))
        accounted.append(int((has_result & ~unaccounted).sum()))
    return Shares(aligned.reference.window.number, _two(telling), _two(paired), _two(accounted))


def _lone(number: int, side: int, event: int) -> Node:
    return Node(number, None, event) if side == SUSPECT else Node(number, event, None)


def _two(numbers: list[int]) -> tuple[int, int]:
    return numbers[0], numbers[1]
