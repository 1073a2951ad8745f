"""Does a difference matter? Follow its bytes, as consumers read them, to something that counts.

Breadth first on both sides at once, inside one window: what leaves the window alive is picked up by a later window's own
differences, whose root walk leads back here. An edge ends where the bytes read are the same on both sides after all, or
where the paired consumer gives the same results.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from opguard_core.align import slots
from opguard_core.align.columns import COLLECTIVE, MUT, OPTIMIZER_PHASE, READ, STATE
from opguard_core.align.ledger import Lifetimes
from opguard_core.align.timeline import REFERENCE, SUSPECT
from opguard_core.certify.endings import raised_alone
from opguard_core.certify.index import WindowIndex
from opguard_core.certify.statecompare import StateBoundary

MAX_CONSUMERS = 8
"""First differing consumers kept for the report."""

GUESS = "guess"
READ_SINK = "read"
MAX_READS = 1 << 20
"""Reads followed in one window; a window beyond that is not judged harmless."""


class Sink(NamedTuple):
    """Where a difference counts.

    Attributes:
        kind: "read", "collective", "optimizer", "state" or "write"; "raise" for what made one side end with an exception;
            "guess" for a read or collective of which only the place says that both sides hand on the same quantity.
        left: Reference event.
        right: Suspect event.
    """

    kind: str
    left: int
    right: int


@dataclass
class Spread:
    """What a walk from one difference found.

    Attributes:
        sink: The first thing that counts, or None.
        consumers: First pairs whose reads differ because of it, as (reference event, suspect event), in order found.
        exhausted: The walk was cut off before it ended.
    """

    sink: Sink | None = None
    consumers: list[tuple[int, int]] = field(default_factory=list)
    exhausted: bool = False


@dataclass(eq=False)
class Matters:
    """Answers for one window.

    Attributes:
        index: The window.
        state: Its state boundary.
        lifetimes: Of the storages of both sides.
        last_told: By side the read after which that side ended with an exception, -1 when there is none in this window.
    """

    index: WindowIndex
    state: StateBoundary
    lifetimes: tuple[Lifetimes, Lifetimes]
    last_told: tuple[int, int] = (-1, -1)
    _reached: dict[bool, dict[tuple[int, int], Sink | None]] = field(default_factory=lambda: {False: {}, True: {}})
    _reads_left: int = MAX_READS

    def __post_init__(self) -> None:
        """Index the state boundary by row."""
        differing = self.state.differing()
        self._state_slots = ({slot.left: slot for slot in differing}, {slot.right: slot for slot in differing})

    def own_sink(self, left: int) -> Sink | None:
        """What a pair counts as by itself: its differing reads leave the program, or its differing outputs are lasting state."""
        aligned = self.index.aligned
        right, pair = int(aligned.left[left]), int(self.index.pair_of[left])
        window = aligned.reference.window
        if not self.index.sure(left):
            return None
        if aligned.reads_differ[pair]:
            if raised_alone(self.index.window(REFERENCE), self.index.window(SUSPECT), left, right):
                return Sink("raise", left, right)
            if window.kind[left] == aligned.suspect.window.kind[right] and window.kind[left] in (READ, COLLECTIVE):
                kind = READ_SINK if window.kind[left] == READ else "collective"
                return Sink(kind if self.same_quantity(pair) else GUESS, left, right)
            both_update = window.phase[left] == aligned.suspect.window.phase[right] == OPTIMIZER_PHASE
            if both_update and (self._updates(REFERENCE, left) or self._updates(SUSPECT, right)):
                return Sink("optimizer", left, right)
        outputs = aligned.outputs
        for at in self.index.differing_outputs(pair):
            if all(self._lasts(side, row) for side, row in ((REFERENCE, int(outputs.left[at])), (SUSPECT, int(outputs.right[at])))):
                return Sink("write", left, right)
        return None

    def same_quantity(self, pair: int) -> bool:
        """What a pair hands on differently is one state by name, or comes on both sides from one pair, or from outside."""
        aligned, index = self.index.aligned, self.index
        for at in index.inputs_of(pair):
            if aligned.inputs.code[at] <= slots.LAST_SAME:
                continue
            name = aligned.reference.window.tensor[aligned.inputs.left[at]]
            if name and name == aligned.suspect.window.tensor[aligned.inputs.right[at]]:
                return True
            left = aligned.reference.producers(int(aligned.inputs.left[at]))[0][:1]
            right = aligned.suspect.producers(int(aligned.inputs.right[at]))[0][:1]
            if not left and not right:
                return True
            if left and right and index.output_index[REFERENCE][left[0]] == index.output_index[SUSPECT][right[0]] >= 0:
                return True
        return False

    def _updates(self, side: int, event: int) -> bool:
        """An optimizer's event changes something in place, so what it reads is part of the update."""
        window = self.index.window(side)
        rows = window.outputs(event)
        return bool((window.direction[rows] == MUT).any())

    def _lasts(self, side: int, row: int) -> bool:
        """The row is the last word, in this window, on state that outlives it and that no state boundary covers.

        Named state is compared at the boundary itself. Unnamed storages count when they are updated from their own
        content of an earlier window (an average of weights is; a work buffer that is filled anew is not).
        """
        flow = self.index.flow(side)
        window = flow.window
        storage = window.storage[row : row + 1]
        if storage[0] < 0 or self.lifetimes[side].dead(storage)[0] <= window.seq[-1]:
            return False
        name = window.text(int(window.tensor[row]))
        if name and not name.startswith("grad:"):
            return not all(self.state.present) and row in flow.last_writes(int(storage[0]))
        if self.lifetimes[side].born(storage)[0] >= window.seq[0]:
            return False
        updates = any(window.storage[read] == storage[0] for read in window.reads(int(window.event[row])).tolist())
        return updates and not name and row in flow.last_writes(int(storage[0]))

    def spread(self, left: int, *, past_reads: bool = False) -> Spread:
        """Follow a pair's differing outputs to the first sink.

        Args:
            left: Reference event of the pair.
            past_reads: Look for something that counts more than a value told to Python; that one is the answer only if
                there is nothing else.

        Cost: each row once per window over all calls, as long as nothing is reached.
        """
        minor = (GUESS, READ_SINK) if past_reads else (GUESS,)
        reached = self._reached[past_reads]
        aligned = self.index.aligned
        pair = int(self.index.pair_of[left])
        result, guess = Spread(), None
        result.sink, guess = _sorted_out(minor, self.own_sink(left), None, None)
        queue: deque[tuple[int, int]] = deque()
        for at in self.index.differing_outputs(pair):
            queue += [(REFERENCE, int(aligned.outputs.left[at])), (SUSPECT, int(aligned.outputs.right[at]))]
        seen: set[tuple[int, int]] = set()
        while queue and (result.sink is None or len(result.consumers) < MAX_CONSUMERS // 2):
            if self._reads_left < 0:
                result.exhausted = True
                break
            side, row = queue.popleft()
            guess = guess or reached.get((side, row))
            if (side, row) in seen or (side, row) in reached:
                continue
            seen.add((side, row))
            for consumer in self.index.flow(side).consumers(row):
                self._reads_left -= 1
                found = self._visit(side, consumer, queue, result.consumers)
                result.sink, guess = _sorted_out(minor, found, result.sink, guess)
        if result.sink is None and not result.exhausted:
            reached.update(dict.fromkeys(seen, guess))
        result.sink = result.sink or guess
        return result

    def _visit(self, side: int, row: int, queue: deque[tuple[int, int]], consumers: list[tuple[int, int]]) -> Sink | None:
        """One read of differing bytes: a sink, more rows to follow, or the end of this edge."""
        index = self.index
        window = index.window(side)
        event = int(window.event[row])
        if window.kind[event] == STATE:
            slot = self._state_slots[side].get(row)
            return Sink("state", slot.left_event, slot.right_event) if slot is not None and slot.counts else None
        left, right = index.sides(side, event)
        if event == self.last_told[side] and index.read_codes[side][row] > slots.LAST_SAME:
            return Sink("raise", left, right)
        if min(left, right) >= 0 and index.sure(left):
            code = index.read_codes[side][row]
            blind = index.is_blind(left, right)
            if blind and code >= slots.UNKNOWN:  # nobody looked at what it returned: whoever reads that shows whether it differs
                queue += [
                    (at, output) for at, one in ((REFERENCE, left), (SUSPECT, right)) for output in index.window(at).outputs(one).tolist()
                ]
            if code <= slots.LAST_SAME:
                return None
            pair = int(index.pair_of[left])
            sink = self.own_sink(left)
            if sink is None and not blind and not index.aligned.differs[pair]:
                return None
            if (left, right) not in consumers and len(consumers) < MAX_CONSUMERS:
                consumers.append((left, right))
            outputs = index.aligned.outputs
            for at in index.differing_outputs(pair):
                queue += [(REFERENCE, int(outputs.left[at])), (SUSPECT, int(outputs.right[at]))]
            return sink
        if not index.is_known(side, row):
            queue += [(side, output) for output in window.outputs(event).tolist() if not index.is_known(side, output)]
        return None


def _sorted_out(minor: tuple[str, ...], found: Sink | None, sink: Sink | None, lesser: Sink | None) -> tuple[Sink | None, Sink | None]:
    """First sink and first minor one, given one more find."""
    if found is not None and found.kind in minor:
        return sink, lesser or found
    return sink or found, lesser
