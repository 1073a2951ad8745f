"""A difference of state that no operator has shown yet, held back until something reads it, or until it is gone.

A step ends where its optimizer does. What the program does to its state after that (a rank that gets from others the weights
which they updated, averaged weights copied back) stands in the next window: until then the state differs, and nobody reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opguard_core.align import slots
from opguard_core.align.columns import STATE, Flags, Ints, Window
from opguard_core.align.dataflow import covers, is_dense
from opguard_core.align.timeline import REFERENCE, SUSPECT
from opguard_core.certify.index import WindowIndex
from opguard_core.certify.roots import Root
from opguard_core.certify.statecompare import StateBoundary, StateSlot

Extent = tuple[int, int, int]
"""Storage, first byte, end."""


@dataclass(frozen=True)
class Piece:
    """One piece of state that differed.

    Attributes:
        extents: Where it lies, of the reference and of the suspect.
        values: What it held there.
        roots: Where its difference comes from.
    """

    extents: tuple[Extent, Extent]
    values: tuple[int, int]
    roots: tuple[Root, ...]

    @classmethod
    def of(cls, index: WindowIndex, slot: StateSlot, roots: list[Root]) -> Piece:
        """A piece of the state at the end of a window."""
        rows = slot.left, slot.right
        left, right = (_extent(index.window(side), row) for side, row in enumerate(rows))
        values = int(index.window(REFERENCE).value[rows[REFERENCE]]), int(index.window(SUSPECT).value[rows[SUSPECT]])
        return cls((left, right), values, tuple(roots))

    def is_settled(self, index: WindowIndex, state: StateBoundary) -> bool:
        """Whether a later window shows that both sides hold the same after all: in its first read, at its end, in its last write."""
        aligned = index.aligned
        reads = _within(self.extents, index, aligned.inputs.left, aligned.inputs.right)
        events = aligned.reference.window.event[aligned.inputs.left]
        reads &= aligned.reference.window.kind[events] != STATE
        if reads.any():
            first = events[reads].min()
            shown = np.flatnonzero(reads & (events == first))
            if (aligned.inputs.code[shown] >= slots.UNKNOWN).any():
                return False
            if any(self._covers(index, int(aligned.inputs.left[at]), int(aligned.inputs.right[at])) for at in shown):
                return True  # else part of it was read, which says nothing of the rest
        ends = _within(self.extents, index, state.left, state.right)
        if ends.any():
            return bool((state.code[ends] < slots.UNKNOWN).all())
        left, right = (self._last(index, side) for side in (REFERENCE, SUSPECT))
        return left is not None and left == right

    def _covers(self, index: WindowIndex, *rows: int) -> bool:
        """Both reads see all bytes of the piece."""
        return all(covers(index.window(side), row, *self.extents[side][1:]) for side, row in enumerate(rows))

    def is_lost(self, index: WindowIndex) -> bool:
        """A later window overwrote it with something nobody looked at: nothing tells whether it still differs."""
        return self._last(index, REFERENCE) is None or self._last(index, SUSPECT) is None

    def _last(self, index: WindowIndex, side: int) -> int | None:
        """What one side holds when the window ends: what it wrote last, else what it had; None if that is not known."""
        window, (storage, lo, hi) = index.window(side), self.extents[side]
        writes = [row for row in index.flow(side).last_writes(storage) if window.lo[row] < hi and window.hi[row] > lo]
        if not writes:
            return self.values[side]
        row = writes[0]
        whole = len(writes) == 1 and _extent(window, row) == self.extents[side]
        return int(window.value[row]) if whole and window.known[row] and is_dense(window, row) else None


def unsettled(pieces: list[Piece], index: WindowIndex, state: StateBoundary) -> list[Piece]:
    """Pieces that still differ in a later window, as far as it tells."""
    return [piece for piece in pieces if not piece.is_settled(index, state)]


def _extent(window: Window, row: int) -> Extent:
    return int(window.storage[row]), int(window.lo[row]), int(window.hi[row])


def _within(extents: tuple[Extent, Extent], index: WindowIndex, left: Ints, right: Ints) -> Flags:
    """Of matched rows, those that touch the extents on both sides."""
    found: Flags = np.ones(len(left), bool)
    for side, rows in enumerate((left, right)):
        window, (storage, lo, hi) = index.window(side), extents[side]
        found &= (window.storage[rows] == storage) & (window.lo[rows] < hi) & (window.hi[rows] > lo)
    return found
