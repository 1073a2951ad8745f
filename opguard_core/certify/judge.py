"""Judges one rank pair: window by window to the first difference that matters, and from there to its root."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from opguard_core.align import slots
from opguard_core.align.columns import BACKWARD_PHASE, COLLECTIVE, DATA_PHASE, OPTIMIZER_PHASE, READ, Flags, Ints
from opguard_core.align.timeline import REFERENCE, SUSPECT, Step, Timeline
from opguard_core.certify.accounted import Accounted
from opguard_core.certify.ambiguity import BY_POSITION, rivals
from opguard_core.certify.begun import begun
from opguard_core.certify.cuts import Cuts, stands_nearby
from opguard_core.certify.devicework.exposed import exposed
from opguard_core.certify.draws import Draws
from opguard_core.certify.endings import last_told, raising
from opguard_core.certify.findings import Harmless, RankFindings
from opguard_core.certify.harmless import HarmlessDifferences
from opguard_core.certify.held import Piece, unsettled
from opguard_core.certify.hiding import Hiding
from opguard_core.certify.index import SURE, WindowIndex
from opguard_core.certify.log_reads import is_other_reading
from opguard_core.certify.losses import tells_the_loss
from opguard_core.certify.matters import GUESS, READ_SINK, Matters, Spread
from opguard_core.certify.prefix import count, note_optimizers, note_state, orders
from opguard_core.certify.root import RootWalk
from opguard_core.certify.roots import Node, Root
from opguard_core.certify.share import shares
from opguard_core.certify.statecompare import StateBoundary, compare_state
from opguard_core.certify.toldlater import told_later
from opguard_core.ids import Kind, Origin

MAX_STEPPED_OVER = 64
"""Differences that follow from a hidden one and are looked through for another cause; there is no `identical` after the first."""

MAX_STATE_WALKS = 64
"""Pieces of differing state that are followed to their roots."""


class RankJudge:
    """One rank pair under judgement.

    Args:
        timeline: Its windows.
        findings: Filled while judging.
        hiding: Benign filters.
    """

    def __init__(self, timeline: Timeline, findings: RankFindings, hiding: Hiding) -> None:
        self.timeline = timeline
        self.findings = findings
        self.walk = RootWalk(timeline)
        self._hiding = hiding
        self._accounted = Accounted(self.walk.rows)
        self._harmless = HarmlessDifferences(timeline, self.walk.rows, findings, self._accounted)
        self._draws = Draws(timeline)
        self._cuts = Cuts()
        self._stepped_over = 0
        self._held: list[Root] = []
        self._pieces: list[Piece] = []
        self._held_since: int | None = None
        self._steps: Iterator[Step] = iter(())

    def run(self, progress: Callable[[int], None]) -> RankFindings:
        """Judge until the first difference that matters, or the end.

        Args:
            progress: Called with the number of events of each window done.
        """
        last: tuple[int | None, int | None] = (None, None)
        self._steps = self.timeline.steps()
        for step in self._steps:
            last = (step.number if step.reference is not None else last[0], step.number if step.suspect is not None else last[1])
            if not _has_content(step):
                continue
            if step.aligned is None:
                if not self.findings.windows and _is_eve(step):
                    continue
                self.findings.one_sided[REFERENCE if step.reference is not None else SUSPECT].append(step.number)
                continue
            self._window(step)
            progress(len(step.aligned.reference.window) + len(step.aligned.suspect.window))
            if self.findings.pivot:
                break
        self.findings.completed = [number for number in self.findings.windows if all(end is not None and number < end for end in last)]
        self.findings.resumed = (self.timeline.resumed[REFERENCE], self.timeline.resumed[SUSPECT])
        if not self.findings.pivot and self._held:
            self._conclude(self._held)
        if not self.findings.pivot:
            self._harmless.settle()
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
        self.walk.rows.adopt(step.number, index)
        state = compare_state(aligned)
        note_state(findings, step.number, state, self._accounted)
        note_optimizers(findings, aligned)
        assert step.reference is not None
        assert step.suspect is not None
        self._cuts.note(step.number, step.reference, step.suspect)
        ledgers = self.timeline.ledgers
        matters = Matters(index, state, (ledgers[REFERENCE].lifetimes, ledgers[SUSPECT].lifetimes), last_told(self.timeline, index))
        findings.shares.append(shares(aligned, index))
        self._let_go(index, state)
        roots, weak = self._first_that_matters(step.number, index, matters)
        if not roots:
            roots = self._state_roots(step.number, state)
        roots = self._rank_with_held(step.number, roots)
        if roots:
            roots = self._told_before(index, matters, roots)
            before = begun(self.walk, index, roots, lambda found: self._unfiltered(found)[0])
            self._harmless.forget({root.node for root in before})
            roots = before or roots
            self._conclude(roots)
        else:
            findings.weak += weak
        count(findings, self.walk.rows, step, index, roots[0].node if roots else None)

    def _conclude(self, roots: list[Root]) -> None:
        node = roots[0].node
        if node.left is not None and node.right is not None and roots[0].consumer is None:  # else its consumer chose it
            self.findings.rivals = [Node(node.window, *pair) for pair in rivals(self.walk.rows.index(node.window), node.left, node.right)]
        self.findings.pivot = roots
        self.findings.on_trust = self.walk.rests_on_trust(roots[0])
        self.findings.split_update = self._is_split_update(node)
        self.findings.cut_apart = self._cuts.doubts(roots[0], self.timeline, self.findings.windows[-1])
        self.findings.clock = self._clock(roots[0])
        if any(columns.trace.launches.any_unwatched for columns in self.timeline.columns):
            self.findings.exposed = exposed(self.walk.rows, roots[0])

    def _is_split_update(self, node: Node) -> bool:
        """An update that may stand in another step on the other side.

        A step ends behind the optimizers that a program steps; what it updates by hand after them stands in the next step. So an
        update is in doubt that one side lacks where the sides have unequally many optimizers or the other one makes it in the next
        step or the one before, and one that is paired with an update behind a backward pass on one side only.
        """
        events = {side: event for side, event in ((REFERENCE, node.left), (SUSPECT, node.right)) if event is not None}
        windows = {side: self.timeline.flow(side, node.window).window for side in events}
        phases = {int(windows[side].phase[event]) for side, event in events.items()}
        if len(events) == 1 and phases <= {OPTIMIZER_PHASE, DATA_PHASE} and stands_nearby(self.timeline, node.window, events):
            return True
        if phases != {OPTIMIZER_PHASE}:
            return False
        if len(events) == 1:
            return self.findings.optimizers[REFERENCE] != self.findings.optimizers[SUSPECT]
        behind = [bool((windows[side].phase[:event] == BACKWARD_PHASE).any()) for side, event in events.items()]
        return behind[0] != behind[1]

    def _state_roots(self, number: int, state: StateBoundary) -> list[Root]:
        """Roots of a state difference; one that no operator shows is held back, for the first operator that reads it."""
        if self._held:
            return []
        roots = self._from_state(number, state)
        if roots and all(root.consumer is not None and self._is_state(root.consumer) for root in roots):
            self._held = roots
            return []
        return roots

    def _let_go(self, index: WindowIndex, state: StateBoundary) -> None:
        """Hold back no longer what this window shows to be the same after all."""
        if not self._held:
            return
        self._pieces = unsettled(self._pieces, index, state)
        seen = [piece for piece in self._pieces if not piece.is_lost(index)]
        left = {root for piece in seen for root in piece.roots}
        if len(seen) < len(self._pieces):  # open: neither a place to name nor equal state
            root = self._held[0]
            self.findings.unresolved.append(Harmless(root.node, root.slot, True, SURE, root.origin))
        self._pieces = seen
        self._held = [root for root in self._held if root in left]
        if not self._held:
            self._held_since = None

    def _is_state(self, node: Node) -> bool:
        return node.left is not None and self.walk.rows.index(node.window).is_state(REFERENCE, node.left)

    def _rank_with_held(self, number: int, roots: list[Root]) -> list[Root]:
        """A held state difference is the first one unless an operator shows it in the very next window."""
        if not self._held or self._held_since is None:
            self._held_since = number if self._held else None
            return roots
        return roots if roots and number <= self._held_since + 1 else self._held if roots else []

    def _first_that_matters(self, number: int, index: WindowIndex, matters: Matters) -> tuple[list[Root], list[tuple[str, Node]]]:
        aligned = index.aligned
        weak: list[tuple[str, Node]] = []
        if self._stepped_over >= MAX_STEPPED_OVER:
            return [], weak
        for left in _candidates(index).tolist():
            node = Node(number, left, int(aligned.left[left]))
            pair = int(index.pair_of[left])
            differing = index.differing_outputs(pair)
            window = aligned.suspect.window
            slot = window.text(int(window.slot[aligned.outputs.right[differing[0]]])) if differing else ""
            if self._hiding.hides(node, index.shown_slots(pair)):
                continue
            spread = matters.spread(left)
            if spread.sink == (GUESS, *node.both) and is_other_reading(self.walk.rows, node, resumed=self._resumes_at(number)):
                self._harmless.name(node, self.walk.output_slot(node), Origin.STRUCTURE)
                continue
            if spread.sink is None and spread.exhausted:
                weak.append(("search-exhausted", node))
                continue
            if spread.sink is None:
                self._harmless.add(index, matters, node, slot, differing, self.walk.from_pair)
                continue
            slug = self._weakness(index, matters, left, differing, spread)
            if slug:
                weak.append((slug, node))
                continue
            doubtful = {other for name, other in weak if name == "auxiliary-output"}
            found = self.walk.from_pair(node)
            if not found:
                weak.append(("search-exhausted", node))
            kept, hidden = self._unfiltered(found)
            roots = [root for root in kept if root.node not in doubtful]
            weak += [("filtered-difference", root.node) for root in hidden[:1]]
            self._stepped_over += bool(hidden)
            if not roots and self._stepped_over >= MAX_STEPPED_OVER:
                break
            if roots and self._is_shifted_draw(matters, left, spread, roots[0]):
                continue
            if roots and self._is_told_only(matters, left, spread, roots[0], number):
                weak.append(("low-confidence", roots[0].node))
            elif roots:
                self.findings.first_consumers = [Node(number, *consumer) for consumer in spread.consumers]
                return roots, []
        return [], weak

    def _resumes_at(self, number: int) -> bool:
        """The first window of both sides is where one of them goes on."""
        return self.findings.windows == [number] and number in self.timeline.resumed and None in self.timeline.resumed

    def _is_shifted_draw(self, matters: Matters, left: int, spread: Spread, root: Root) -> bool:
        """A draw that the other side makes as well, at another time, and of which only Python was told."""
        assert spread.sink is not None
        if spread.sink.kind != READ_SINK or root.origin != Origin.RANDOM_STATE:
            return False
        sink = matters.spread(left, past_reads=True).sink
        return (sink is None or sink.kind in (READ_SINK, GUESS)) and self._draws.are_shifted(root.node)

    def _told_before(self, index: WindowIndex, matters: Matters, roots: list[Root]) -> list[Root]:
        """Roots of an earlier difference of the same window, if Python is told of it in the next window; else the given ones."""
        number = index.window(REFERENCE).number
        lefts = self._harmless.lefts(number)
        step = next(self._steps, None) if lefts else None
        if step is None or step.aligned is None:
            return roots
        ahead = WindowIndex(step.aligned)
        self.walk.rows.adopt(step.number, ahead)
        reading = Matters(ahead, compare_state(step.aligned), matters.lifetimes)
        for left, sink in told_later(self.timeline, self.walk.rows, lefts, index, ahead, reading).items():
            node = Node(number, left, int(index.aligned.left[left]))
            spread = Spread(sink=sink)
            if self._weakness(index, matters, left, index.differing_outputs(int(index.pair_of[left])), spread):
                continue
            found, _ = self._unfiltered(self.walk.from_pair(node))
            if not found or self.walk.rows.order(found[0].node) >= self.walk.rows.order(roots[0].node):
                continue
            if not (
                self._is_told_only(matters, left, spread, found[0], step.number) or self._is_shifted_draw(matters, left, spread, found[0])
            ):
                self._harmless.forget({node, found[0].node})
                return found
        return roots

    def _is_told_only(self, matters: Matters, left: int, spread: Spread, root: Root, told_in: int) -> bool:
        """Python is told another value, of operators that only their place pairs and that read other things: perhaps other logging.

        The loss is no log: the value from which a backward pass starts is one quantity on both sides.
        """
        assert spread.sink is not None
        if spread.sink.kind != READ_SINK or root.origin != Origin.STRUCTURE or not root.node.is_pair:
            return False
        if tells_the_loss(self.timeline, Node(told_in, spread.sink.left, spread.sink.right)):
            return False
        aligned = self.walk.rows.index(root.node.window).aligned
        pair_left, pair_right = root.node.both
        if aligned.left[pair_left] == pair_right and aligned.how[pair_left] not in BY_POSITION:
            return False
        sink = matters.spread(left, past_reads=True).sink
        return sink is None or sink.kind in (READ_SINK, GUESS)

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
        if self._stepped_over >= MAX_STEPPED_OVER:
            return roots
        counted = [slot for slot in state.differing() if slot.counts]
        if state.exchanged:  # names that depend on what ran first, or values that changed places: the state cannot tell
            self.findings.weak.append(("state-exchanged", Node(number, counted[0].left_event, counted[0].right_event)))
            return roots
        self._pieces = []
        for slot in counted[:MAX_STATE_WALKS]:
            found = self.walk.from_slots(Node(number, slot.left_event, slot.right_event), slot.left, slot.right)
            self._pieces.append(Piece.of(self.walk.rows.index(number), slot, found))
            roots += found
        if counted and not roots:
            self.findings.weak.append(("search-exhausted", Node(number, counted[0].left_event, counted[0].right_event)))
        kept, hidden = self._unfiltered(roots)
        self.findings.weak += [("filtered-difference", root.node) for root in hidden[:1]]
        return sorted(kept, key=lambda root: self.walk.rows.turn(root.node))

    def _unfiltered(self, roots: list[Root]) -> tuple[list[Root], list[Root]]:
        """Roots that no filter hides, and the others; what follows from a hidden one is not called equal."""
        kept: list[Root] = []
        hidden: list[Root] = []
        for root in roots:
            (hidden if self._hiding.hides(root.node, self.walk.shown_slots(root)) else kept).append(root)
        return kept, hidden

    def _clock(self, root: Root) -> int:
        """When a root happens, for comparing ranks: collectives begun before it, twice, and one more for a collective's result.

        What a collective hands out on one rank may come from another, whose own work before it has the same count; so may be what that
        one hands in. Work that one side lacks would happen there before its consumer.
        """
        found, handed_in = [], root.node.is_pair and root.slot.startswith("in.")
        nodes = [node for node in (root.node, root.consumer) if node is not None]
        for side in (REFERENCE, SUSPECT):
            at = [(node.window, event) for node in nodes if (event := (node.left, node.right)[side]) is not None]
            for number, event in at[:1]:
                window = self.timeline.flow(side, number).window
                found.append(2 * int(window.clock[event]) + int(window.kind[event] == COLLECTIVE and not handed_in))
        return min(found)


def _has_content(step: Step) -> bool:
    """Something was recorded there; outside a capture window there is at most the marker of a run's begin or end."""
    tables = [table for table in (step.reference, step.suspect) if table is not None]
    return any((table.events["kind"] != table.strings["kind"].code(Kind.MARKER)).any() for table in tables)


def _is_eve(step: Step) -> bool:
    """Nothing but state: the step before a capture window, which a run that was resumed inside of it does not have."""
    tables = [table for table in (step.reference, step.suspect) if table is not None]
    idle = (Kind.MARKER, Kind.STATE)
    return all(np.isin(table.events["kind"], [table.strings["kind"].code(kind) for kind in idle]).all() for table in tables)


def _candidates(index: WindowIndex) -> Ints:
    """Reference events of pairs that may show a difference, in an order that does not depend on the sides' names."""
    aligned = index.aligned
    sides = (aligned.reference.window, aligned.pairs), (aligned.suspect.window, aligned.left[aligned.pairs])
    leaving: Flags = np.ones(len(aligned.pairs), bool)
    for window, events in sides:
        kind = window.kind[events]
        leaving &= (kind == READ) | (kind == COLLECTIVE) | (window.phase[events] == OPTIMIZER_PHASE)
    raised = raising(aligned.reference.window, sides[0][1]) != raising(aligned.suspect.window, sides[1][1])
    at = np.flatnonzero(aligned.differs | (aligned.reads_differ & leaving) | raised)
    return aligned.pairs[at[np.argsort(orders(index)[at], kind="stable")]]
