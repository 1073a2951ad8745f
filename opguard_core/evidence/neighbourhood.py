"""The boundaries around one place of two traces, as rows of pairs: what a reader scrolls through to see where the sides part.

Only pairing and comparison are told here, by event numbers and slot names; what a trace recorded there is read by whoever shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from opguard_core.align import slots
from opguard_core.align.timeline import REFERENCE, SUSPECT, Timeline
from opguard_core.certify.index import WindowIndex
from opguard_core.certify.spreading import Results
from opguard_core.ids import SIDES
from opguard_core.trace.reader import RankTrace

ALONE = "alone"
"""How a slot compares that the other side does not have."""


@dataclass(frozen=True)
class SlotPair:
    """Two slots that stand for each other.

    Attributes:
        names: Name on each side, the reference's first; None where that side has none.
        how: One of `slots.NAMES`, or `ALONE`.
    """

    names: tuple[str | None, str | None]
    how: str

    @property
    def differs(self) -> bool:
        """Whether that is a difference."""
        return self.how in slots.NAMES[slots.LAST_SAME + 1 :]


@dataclass(frozen=True)
class Row:
    """One boundary, or two that are a pair.

    Attributes:
        seqs: Event number on each side, the reference's first; None where that side has none.
        results: What became of it: differ, same, unknown or alone.
        slots: Its slots, reads first.
    """

    seqs: tuple[int | None, int | None]
    results: Results
    slots: tuple[SlotPair, ...]

    @property
    def differs(self) -> bool:
        """Whether the sides do not agree here."""
        return self.results in (Results.DIFFER, Results.ALONE)


@dataclass(frozen=True)
class Neighbourhood:
    """Rows of one window in the suspect's order.

    Attributes:
        window: Its number.
        rows: Those around the place.
        at: Index of the place in `rows`.
        before: Rows of the window before those.
        after: Rows of the window after those.
        beyond: Differing rows among those not in `rows`, in order; at most as many as were asked for.
        beyond_total: How many of them there are.
    """

    window: int
    rows: tuple[Row, ...]
    at: int
    before: int
    after: int
    beyond: tuple[Row, ...]
    beyond_total: int


def neighbourhood(
    reference: RankTrace, suspect: RankTrace, place: Mapping[str, int | None], around: int, beyond: int
) -> Neighbourhood | None:
    """Pair the window of a place and cut out what is around it.

    Args:
        reference: Trace of the reference's rank.
        suspect: Trace of the suspect's rank.
        place: Event number by side; None for a side that has nothing there.
        around: Rows to take before and after the place.
        beyond: Differing rows elsewhere in the window to take.

    Returns:
        None where no window that both sides have holds the place.

    Raises:
        TraceFormatError: A trace cannot be read.

    Cost: reads and aligns one window of each side.
    """
    timeline = Timeline(reference, suspect)
    wanted = (place.get(SIDES[REFERENCE]), place.get(SIDES[SUSPECT]))
    for side in (SUSPECT, REFERENCE):
        seq = wanted[side]
        found = None if seq is None else timeline.columns[side].trace.event_at(seq)
        if found is not None and timeline.look(found[0].window):
            rows = _rows(WindowIndex(timeline.aligned(found[0].window)))
            at = _index_of(rows, wanted)
            if at is not None:
                return _cut(found[0].window, rows, at, around, beyond)
    return None


def _cut(window: int, rows: list[Row], at: int, around: int, beyond: int) -> Neighbourhood:
    first, last = max(0, at - around), min(len(rows), at + around + 1)
    others = [row for row in (*rows[:first], *rows[last:]) if row.differs]
    return Neighbourhood(window, tuple(rows[first:last]), at - first, first, len(rows) - last, tuple(others[:beyond]), len(others))


def _index_of(rows: list[Row], wanted: tuple[int | None, int | None]) -> int | None:
    """The row of two event numbers; of those that have one of them only, the one that differs, else the first."""
    exact = [index for index, row in enumerate(rows) if row.seqs == wanted]
    partly = [index for index, row in enumerate(rows) if any(a is not None and a == b for a, b in zip(row.seqs, wanted, strict=True))]
    return next(iter(sorted(exact or partly, key=lambda index: not rows[index].differs)), None)


def _rows(index: WindowIndex) -> list[Row]:
    """All rows of a window; a list operator, which is aligned element by element, is one row again."""
    found: list[Row] = []
    for left, right in _order(index):
        row = _row(index, left, right)
        same_call = found and None not in row.seqs and found[-1].seqs == row.seqs
        if same_call:
            results = row.results if row.results == Results.DIFFER else found[-1].results
            found[-1] = Row(row.seqs, results, tuple(dict.fromkeys((*found[-1].slots, *row.slots))))
        else:
            found.append(row)
    return found


def _order(index: WindowIndex) -> list[tuple[int | None, int | None]]:
    """Events of both sides in the suspect's order; one that only the reference has follows the pair that it follows there."""
    aligned = index.aligned
    reference, suspect = aligned.reference.window, aligned.suspect.window
    keyed: list[tuple[tuple[int, int, int], tuple[int | None, int | None]]] = []
    for right in np.flatnonzero(suspect.comparable).tolist():
        left = int(aligned.right[right])
        keyed.append(((right, 0, 0), (left if left >= 0 else None, right)))
    after: dict[int, int] = {}  # by lane, so that a thread's events stay with their own
    for left in np.flatnonzero(reference.comparable).tolist():
        lane, right = int(reference.lane[left]), int(aligned.left[left])
        if right >= 0:
            after[lane] = right
        else:
            keyed.append(((after.get(lane, -1), 1, left), (left, None)))
    return [pair for _, pair in sorted(keyed, key=lambda item: item[0])]


def _row(index: WindowIndex, left: int | None, right: int | None) -> Row:
    windows = (index.aligned.reference.window, index.aligned.suspect.window)
    seqs = tuple(None if event is None else int(window.seq[event]) for window, event in zip(windows, (left, right), strict=True))
    if left is None or right is None:
        side, event = (REFERENCE, left) if left is not None else (SUSPECT, right)
        assert event is not None
        window = windows[side]
        names = [window.text(int(window.slot[row])) for row in range(int(window.first[event]), int(window.first[event + 1]))]
        alone = tuple(SlotPair((name, None) if side == REFERENCE else (None, name), ALONE) for name in names)
        return Row((seqs[0], seqs[1]), Results.ALONE, alone)
    pair = int(index.pair_of[left])
    reads, outputs = _matched(index, pair, outputs=False), _matched(index, pair, outputs=True)
    differs = any(item.differs for item in outputs) or (not outputs and any(item.differs for item in reads))
    results = Results.DIFFER if differs else Results.UNKNOWN if index.is_blind(left, right) else Results.SAME
    return Row((seqs[0], seqs[1]), results, (*reads, *outputs))


def _matched(index: WindowIndex, pair: int, *, outputs: bool) -> list[SlotPair]:
    """Slots of a pair that stand for each other."""
    aligned = index.aligned
    table, chosen = (aligned.outputs, index.outputs_of(pair)) if outputs else (aligned.inputs, index.inputs_of(pair))
    reference, suspect = aligned.reference.window, aligned.suspect.window
    found = []
    for at in chosen:
        left, right = int(table.left[at]), int(table.right[at])
        names = reference.text(int(reference.slot[left])), suspect.text(int(suspect.slot[right]))
        found.append(SlotPair(names, slots.NAMES[int(table.code[at])]))
    return found


__all__ = ["ALONE", "Neighbourhood", "Row", "SlotPair", "neighbourhood"]
