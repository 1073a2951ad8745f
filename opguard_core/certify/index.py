"""One aligned window, indexed the way certification asks: codes by slot row, slots by pair, order on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from opguard_core.align import slots
from opguard_core.align.aligned import Aligned
from opguard_core.align.columns import STATE, Ints, Window, Words
from opguard_core.align.dataflow import Dataflow
from opguard_core.align.timeline import REFERENCE, SUSPECT

SURE = 2
"""Least confidence of a pair that may show a difference."""


@dataclass(eq=False)
class WindowIndex:
    """Look-ups into one aligned window.

    Attributes:
        aligned: The window.
    """

    aligned: Aligned

    @cached_property
    def pair_of(self) -> Ints:
        """Index into `Aligned.pairs` by reference event, -1 when it has no partner."""
        pair_of = np.full(len(self.aligned.left), -1, np.int64)
        pair_of[self.aligned.pairs] = np.arange(len(self.aligned.pairs))
        return pair_of

    @cached_property
    def read_codes(self) -> tuple[slots.Codes, slots.Codes]:
        """How each read row of each side compares with its counterpart; `slots.UNMATCHED` where it has none."""
        inputs = self.aligned.inputs
        return (
            _by_row(inputs.left, inputs.code, len(self.aligned.reference.window.event)),
            _by_row(inputs.right, inputs.code, len(self.aligned.suspect.window.event)),
        )

    @cached_property
    def output_index(self) -> tuple[Ints, Ints]:
        """Index into `Aligned.outputs` by output row of each side, -1 where it has no counterpart."""
        outputs = self.aligned.outputs
        found = []
        for rows, window in ((outputs.left, self.aligned.reference.window), (outputs.right, self.aligned.suspect.window)):
            index = np.full(len(window.event), -1, np.int64)
            index[rows] = np.arange(len(rows))
            found.append(index)
        return found[0], found[1]

    @cached_property
    def _output_at(self) -> Ints:
        return np.searchsorted(self.aligned.outputs.pair, np.arange(len(self.aligned.pairs) + 1))

    @cached_property
    def _input_at(self) -> Ints:
        return np.searchsorted(self.aligned.inputs.pair, np.arange(len(self.aligned.pairs) + 1))

    def outputs_of(self, pair: int) -> range:
        """Indices into `Aligned.outputs` of one pair."""
        return range(int(self._output_at[pair]), int(self._output_at[pair + 1]))

    def inputs_of(self, pair: int) -> range:
        """Indices into `Aligned.inputs` of one pair."""
        return range(int(self._input_at[pair]), int(self._input_at[pair + 1]))

    def differing_outputs(self, pair: int) -> list[int]:
        """Indices into `Aligned.outputs` of one pair's outputs that are not the same."""
        return [at for at in self.outputs_of(pair) if self.aligned.outputs.code[at] > slots.LAST_SAME]

    def shown_slots(self, pair: int) -> list[str]:
        """Names of the slots in which one pair shows a difference: outputs, or what it reads where no output differs."""
        aligned, window = self.aligned, self.aligned.suspect.window
        rows = [int(aligned.outputs.right[at]) for at in self.differing_outputs(pair)]
        if not rows:
            rows = [int(aligned.inputs.right[at]) for at in self.inputs_of(pair) if aligned.inputs.code[at] > slots.LAST_SAME]
        return [window.text(int(window.slot[row])) for row in rows]

    def flow(self, side: int) -> Dataflow:
        """Dataflow of one side."""
        return self.aligned.suspect if side == SUSPECT else self.aligned.reference

    def window(self, side: int) -> Window:
        """Columns of one side."""
        return self.flow(side).window

    def partner(self, side: int, event: int) -> int:
        """Partner of an event of one side, -1 when it has none."""
        return int((self.aligned.right if side == SUSPECT else self.aligned.left)[event])

    def sides(self, side: int, event: int) -> tuple[int, int]:
        """(reference event, suspect event) of a pair named by one of its events."""
        partner = self.partner(side, event)
        return (partner, event) if side == SUSPECT else (event, partner)

    def sure(self, left: int) -> bool:
        """The pair of a reference event is sure enough to show a difference."""
        return bool(self.aligned.confidence[left] >= SURE)

    def is_known(self, side: int, row: int) -> bool:
        """The bytes of a row, in their order, also occur on the other side in this window."""
        window = self.window(side)
        if not window.telling[row]:
            return False
        values = self.aligned.reference_values if side == SUSPECT else self.aligned.suspect_values
        return contains(values, int(window.value[row]))

    def is_constant(self, side: int, row: int) -> bool:
        """A trivial value made from nothing (zeros for an accumulator, say) that the other side makes in the same way."""
        window, other = self.window(side), self.window(1 - side)
        event = int(window.event[row])
        if not window.known[row] or len(window.reads(event)) or window.rng[event]:
            return False
        rows = np.flatnonzero((other.value == window.value[row]) & other.output & other.known)
        events = other.event[rows]
        return bool(((other.op[events] == window.op[event]) & (other.read_first[events + 1] == other.read_first[events])).any())

    @cached_property
    def _ranks(self) -> tuple[Ints, Ints]:
        return self.aligned.pairs, np.sort(self.aligned.left[self.aligned.pairs])

    def order(self, left: int | None, right: int | None) -> int:
        """Where an event or pair stands in the window, the same number whichever side is called the suspect."""
        ranks = [
            2 * int(np.searchsorted(paired, event)) for paired, event in zip(self._ranks, (left, right), strict=True) if event is not None
        ]
        return sum(ranks) if len(ranks) == 2 else 2 * ranks[0] - 1

    def is_blind(self, left: int, right: int) -> bool:
        """The mode looked, on both sides, at nothing that a pair returned: its results may differ."""
        return bool(self.window(REFERENCE).blind[left] and self.window(SUSPECT).blind[right])

    def is_state(self, side: int, event: int) -> bool:
        """The event is a state boundary."""
        return bool(self.window(side).kind[event] == STATE)


def contains(values: Words, value: int) -> bool:
    """True if a sorted uint64 array holds a value."""
    at = int(np.searchsorted(values, np.uint64(value)))
    return at < len(values) and int(values[at]) == value


def _by_row(rows: Ints, codes: slots.Codes, count: int) -> slots.Codes:
    found = np.full(count, slots.UNMATCHED, np.uint8)
    found[rows] = codes
    return found
