"""Gaps between skeleton anchors, and the best monotone pairing inside them by dynamic programming.

Gap cost is zero, so a path only gains by pairing. Large gaps are searched in a band around their diagonal; what lies
outside the band stays unpaired and the caller is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.columns import Flags, Ints

Scores = NDArray[np.float32]
Score = Callable[[Ints, Ints], tuple[Scores, Flags]]
"""Scores and admissibility of cells (reference events, suspect events)."""

CHUNK_CELLS = 1 << 18
"""Cells scored at once."""

BAND_CELLS = 1 << 20
"""Cells of one gap beyond which only a band of it is searched."""

BAND_WIDTH = 256
_SMALL_CELLS = 48
_LEFT, _UP, _PAIR = 0, 1, 2


@dataclass(frozen=True)
class Gap:
    """Unpaired events of one lane between the same two anchors.

    Attributes:
        left: int64[a], reference events, rising.
        right: int64[b], suspect events, rising.
        open_end: An anchor stands before them and none after them.
    """

    left: Ints
    right: Ints
    open_end: bool = False

    @property
    def cells(self) -> int:
        """Number of possible pairs."""
        return len(self.left) * len(self.right)

    def from_anchor(self) -> Gap:
        """The same gap; an open one backwards, so that its ties, too, go to the pair that stands last: next to the anchor."""
        return Gap(self.left[::-1], self.right[::-1], True) if self.open_end else self


def split(left: Ints, right: Ints, left_anchors: Ints, right_anchors: Ints) -> list[Gap]:
    """Cut free events at the anchors; gaps that are empty on one side are left out.

    Args:
        left: int64[a], free reference events, rising.
        right: int64[b], free suspect events, rising.
        left_anchors: int64[k], reference events of the skeleton, rising.
        right_anchors: int64[k], their partners, rising.
    """
    left_gap, right_gap = np.searchsorted(left_anchors, left), np.searchsorted(right_anchors, right)
    both = np.intersect1d(left_gap, right_gap)
    starts = [np.searchsorted(left_gap, both), np.searchsorted(right_gap, both)]
    ends = [np.searchsorted(left_gap, both, "right"), np.searchsorted(right_gap, both, "right")]
    last = len(left_anchors)
    return [
        Gap(left[a:b], right[c:d], bool(0 < number == last))
        for number, a, b, c, d in zip(both.tolist(), starts[0], ends[0], starts[1], ends[1], strict=True)
    ]


def solve(gaps: list[Gap], score: Score) -> tuple[Ints, Ints, int]:
    """Pair events inside each gap, monotone, with the largest total score.

    Of equally good pairings the one nearest to the anchor behind the gap is taken; where there is none (one side may have ended
    early, and what it lacks are the last events), the one nearest to the anchor in front of it.

    Args:
        gaps: Disjoint gaps.
        score: Scores of cells; cells it does not admit never pair.

    Returns:
        Reference events, suspect events, and the number of gaps of which only a band was searched.

    Cost: one row of numpy work per reference event, bounded by `BAND_CELLS` or a band of `BAND_WIDTH`.
    """
    left: list[int] = []
    right: list[int] = []
    banded = 0
    gaps = [gap.from_anchor() for gap in gaps]
    for batch in _batches(gaps):
        rows = np.concatenate([np.repeat(gap.left, len(gap.right)) for gap in batch])
        columns = np.concatenate([np.tile(gap.right, len(gap.left)) for gap in batch])
        scores, allowed = score(rows, columns)
        scores = np.where(allowed, scores, np.float32(0))
        at = 0
        for gap in batch:
            table = scores[at : at + gap.cells].reshape(len(gap.left), len(gap.right))
            at += gap.cells
            if not table.any():
                continue
            pairs = _small(table.tolist()) if gap.cells <= _SMALL_CELLS else _rows(len(gap.right), [(0, row) for row in table])
            left.extend(int(gap.left[i]) for i, _ in pairs)
            right.extend(int(gap.right[j]) for _, j in pairs)
    for gap in gaps:
        if gap.cells > CHUNK_CELLS:
            banded += gap.cells > BAND_CELLS and len(gap.right) > BAND_WIDTH
            pairs = _rows(len(gap.right), _band(gap, score))
            left.extend(int(gap.left[i]) for i, _ in pairs)
            right.extend(int(gap.right[j]) for _, j in pairs)
    return np.array(left, np.int64), np.array(right, np.int64), banded


def _batches(gaps: list[Gap]) -> Iterator[list[Gap]]:
    """Group gaps so that each group's cells fit one scoring call; larger ones are scored row by row elsewhere."""
    batch: list[Gap] = []
    total = 0
    for gap in gaps:
        if gap.cells > CHUNK_CELLS:
            continue
        if batch and total + gap.cells > CHUNK_CELLS:
            yield batch
            batch, total = [], 0
        batch.append(gap)
        total += gap.cells
    if batch:
        yield batch


def _band(gap: Gap, score: Score) -> Iterator[tuple[int, Scores]]:
    """Rows of a large gap: first column and scores; the whole width while the gap has at most `BAND_CELLS` cells."""
    width = len(gap.right)
    span = width if gap.cells <= BAND_CELLS else min(width, BAND_WIDTH)
    for i, event in enumerate(gap.left):
        centre = (i * width) // len(gap.left)
        start = max(0, min(centre - span // 2, width - span))
        columns = gap.right[start : start + span]
        scores, allowed = score(np.full(span, event), columns)
        yield start, np.where(allowed, scores, np.float32(0))


def _small(table: list[list[float]]) -> list[tuple[int, int]]:
    """Best monotone pairing of a small table, in plain Python: numpy's call cost would dominate."""
    height, width = len(table), len(table[0])
    best = [[0.0] * (width + 1)]
    for row in table:
        above, here = best[-1], [0.0]
        for j in range(width):
            value = above[j + 1] if above[j + 1] >= here[j] else here[j]
            if row[j] > 0 and above[j] + row[j] >= value:
                value = above[j] + row[j]
            here.append(value)
        best.append(here)
    pairs = []
    i, j = height, width
    while i and j:
        gain = table[i - 1][j - 1]
        if gain > 0 and best[i][j] == best[i - 1][j - 1] + gain:
            pairs.append((i - 1, j - 1))
            i, j = i - 1, j - 1
        elif best[i][j] == best[i - 1][j]:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def _rows(width: int, band: Iterable[tuple[int, Scores]]) -> list[tuple[int, int]]:
    """Best monotone pairing, one vectorised row at a time, for rows that may cover only part of the width.

    The starts of a band never fall. Left of it the row above holds, right of it its last value holds: leaving the band
    only means not pairing. Only one row of values is kept, and one byte per cell to walk back.
    """
    best = np.zeros(width + 1, np.float64)
    filled = 0  # best[:filled + 1] is up to date, the rest equals best[filled]
    moves: list[tuple[int, NDArray[np.uint8]]] = []
    for start, scores in band:
        end = start + len(scores)
        best[filled + 1 : end + 1] = best[filled]
        filled = max(filled, end)
        above = best[start : end + 1].copy()
        paired = np.where(scores > 0, above[:-1] + scores, -1.0)
        here = np.maximum.accumulate(np.maximum(above[1:], paired))
        moves.append((start, np.where(here == paired, _PAIR, np.where(here == above[1:], _UP, _LEFT)).astype(np.uint8)))
        best[start + 1 : end + 1] = here
        filled = end
    pairs = []
    i, j = len(moves), width
    while i and j:
        start, row = moves[i - 1]
        move = _UP if j - 1 < start else _LEFT if j - 1 >= start + len(row) else row[j - 1 - start]
        if move == _PAIR:
            pairs.append((i - 1, j - 1))
        i -= move != _LEFT
        j -= move != _UP
    return pairs[::-1]
