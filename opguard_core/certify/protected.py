"""What no filter may hide: updates of parameters and optimizer state, gradients, and the loss.

Asked about single differences, before a filter hides one. What merely leads there is not looked at here: the difference
that it causes is found by itself, and a verdict never steps over a hidden cause (``filtered-difference``).

What it cannot see: a loss of which no backward pass was recorded is a value like any other.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from opguard_core.align.columns import MUT, OPTIMIZER_PHASE, PHASES, READ, STATE, Window
from opguard_core.align.dataflow import Dataflow
from opguard_core.align.timeline import REFERENCE, SUSPECT, Row, Timeline
from opguard_core.certify.endings import raising
from opguard_core.certify.losses import is_scalar, starts
from opguard_core.certify.roots import Node
from opguard_core.certify.statecompare import kind_of
from opguard_core.ids import Phase

UPDATE = "an update of parameters or optimizer state"
GRADIENT = "a gradient"
STATE_VALUE = "the state that a step leaves behind"
LOSS = "the loss"
ENDING = "the exception that ends a side"

MAX_LOSS_TERMS = 4096
"""Scalars followed upwards from where backward passes begin, per window and side."""

_BACKWARD = PHASES.index(Phase.BACKWARD)
_KINDS_OF_STATE = ("param", "optim", "buffer", "rng")


class Protected:
    """Says what a difference is that must not be hidden, for one rank pair.

    Args:
        timeline: All its windows.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._losses: dict[tuple[int, int], tuple[frozenset[int], frozenset[int]]] = {}

    def what(self, node: Node, slots: Iterable[str]) -> str:
        """What the difference at some slots of a boundary is, in words; empty if it may be hidden.

        Cost: the slots' consumers and producers; once per window and side the scalars above the backward passes.
        """
        wanted = frozenset(slots)
        for side, event in ((REFERENCE, node.left), (SUSPECT, node.right)):
            found = "" if event is None else self._what(side, node.window, event, wanted)
            if found:
                return found
        return ""

    def _what(self, side: int, number: int, event: int, slots: frozenset[str]) -> str:
        flow = self.timeline.flow(side, number)
        window = flow.window
        if window.kind[event] == STATE:
            return STATE_VALUE
        if raising(window, np.array([event]))[0]:
            return ENDING
        if window.phase[event] == OPTIMIZER_PHASE:
            return UPDATE
        if window.phase[event] == _BACKWARD:
            return GRADIENT
        rows = [row for row in range(int(window.first[event]), int(window.first[event + 1])) if window.text(int(window.slot[row])) in slots]
        names = {kind_of(name) for row in rows for name in _names(flow, row)}
        if "grad" in names:
            return GRADIENT
        if names.intersection(_KINDS_OF_STATE) or self._goes_on(side, window, event, rows):
            return STATE_VALUE
        readers = (window.event[reader] for row in rows if window.written[row] for reader in flow.consumers(row))
        if any(window.phase[reader] == OPTIMIZER_PHASE for reader in readers):
            return UPDATE
        return LOSS if self._is_loss(side, number, window, event) else ""

    def _goes_on(self, side: int, window: Window, event: int, rows: list[int]) -> bool:
        """Something older than the step is updated from its own content: an average of weights, say."""
        reads = {int(window.storage[row]) for row in window.reads(event).tolist()}
        storages = [int(window.storage[row]) for row in rows if window.direction[row] == MUT and window.storage[row] >= 0]
        own = np.array([storage for storage in storages if storage in reads], np.int64)
        return bool((self.timeline.ledgers[side].lifetimes.born(own) < window.seq[0]).any())

    def _is_loss(self, side: int, number: int, window: Window, event: int) -> bool:
        """The event makes a value that a backward pass starts from, or tells one to Python."""
        if window.kind[event] != READ:
            return event in self._loss(side, number)[0]
        for row in window.reads(event).tolist():
            for made in self.timeline.producers(Row(side, number, row))[0]:
                maker = int(self.timeline.flow(side, made.window).window.event[made.row])
                if any(maker in events for events in self._loss(side, made.window)):
                    return True
        return False

    def _loss(self, side: int, number: int) -> tuple[frozenset[int], frozenset[int]]:
        """Events of a window that make the loss or a scalar term of it, and events that a backward pass went through."""
        if (side, number) not in self._losses:
            window = self.timeline.flow(side, number).window
            linked = window.forward[(window.phase == _BACKWARD) & (window.forward >= 0)]
            through = frozenset(linked.tolist())
            self._losses[side, number] = self._terms(side, number, through), through
        return self._losses[side, number]

    def _terms(self, side: int, number: int, through: frozenset[int]) -> frozenset[int]:
        """From what backward passes start from, up through scalars: a scaled or averaged loss and the loss itself."""
        flow = self.timeline.flow(side, number)
        window = flow.window
        queue = [row for event in starts(window).tolist() for row in range(int(window.first[event]), int(window.first[event + 1]))]
        terms = set() if queue else _scalars_of(flow, through)
        queue += [row for event in terms for row in window.reads(event).tolist()]
        while queue and len(terms) < MAX_LOSS_TERMS:
            for made in flow.producers(queue.pop())[0]:
                maker = int(window.event[made])
                if maker not in terms and window.phase[maker] != _BACKWARD and is_scalar(window, made):
                    terms.add(maker)
                    queue += window.reads(maker).tolist()
        return frozenset(terms)


def _scalars_of(flow: Dataflow, through: frozenset[int]) -> set[int]:
    """Events that make scalars of what backward passes went through, in any number of steps.

    Where the first gradient was given (``loss.backward(scale)``) nothing shows where a pass started; the loss is among these.
    """
    window = flow.window
    found: set[int] = set()
    queue = sorted(through)
    while queue and len(found) < MAX_LOSS_TERMS:
        event = queue.pop()
        made = [row for row in range(int(window.first[event]), int(window.first[event + 1])) if window.written[row]]
        if event in found or window.phase[event] in (_BACKWARD, OPTIMIZER_PHASE) or not any(is_scalar(window, row) for row in made):
            continue
        found.add(event)
        queue += [int(window.event[reader]) for row in made for reader in flow.consumers(row)]
    return found


def _names(flow: Dataflow, row: int) -> set[str]:
    """What the memory of a slot is called anywhere in its window: a parameter is initialised before it belongs to a module."""
    window = flow.window
    storage = int(window.storage[row])
    rows = flow.rows_of(storage) if storage >= 0 else np.array([row])
    return {window.text(number) for number in np.unique(window.tensor[rows]).tolist()} - {""}
