"""The passes that pair events, from the strongest evidence to the weakest.

Source: the order and the rules come from a study of real pairs of runs (content first, dataflow second, site last).
"""

from __future__ import annotations

import itertools

import numpy as np

from opguard_core.align import content, evidence
from opguard_core.align.columns import READ, Flags, Ints, Words, combined
from opguard_core.align.features import Features
from opguard_core.align.gaps import Gap, Scores, solve
from opguard_core.align.pairing import ANCHOR, CONTENT, EVIDENCE, EXACT, LEFTOVER, Pairing
from opguard_core.align.skeleton import longest_rising

ANCHORED_CELLS = 1 << 16
"""Cells of a gap beyond which it is first cut at events that look the same in the code."""

_CROWD = 64
"""Members of a class of equal content among left-overs beyond which they pair in order instead of by preference."""


def join_content(pairing: Pairing) -> None:
    """Pair by what was produced and read: not monotone, over all lanes, classes of equal size only."""
    reference, suspect = pairing.reference, pairing.suspect
    for name, by_phase in itertools.product(("joined_in_order", "produced_in_order", "joined", "produced"), (False, True)):
        left, right = pairing.free_left(), pairing.free_right()
        left, right = left[_tells(reference, name)[left]], right[_tells(suspect, name)[right]]
        keys = []
        for side, events in ((reference, left), (suspect, right)):
            key: Words = getattr(side, name)[events]
            keys.append(combined(key, side.window.phase[events], side.window.microbatch[events]) if by_phase else key)
        a, b = content.join(keys[0], keys[1], reference.window.phase[left], suspect.window.phase[right])
        pairing.add(left[a], right[b], CONTENT)


def _tells(side: Features, name: str) -> Flags:
    """Events that the key identifies: something non-trivial was produced, or read by an event that only reads."""
    if name.startswith("produced"):
        return side.has_content
    flags: Flags = side.has_content | ((side.window.kind == READ) & (side.telling_reads > 0))
    return flags


def return_strays(pairing: Pairing) -> None:
    """Lay the skeleton; free pairs off it whose phases differ: a recomputation stole the partner."""
    off = pairing.lay_skeleton()
    stolen = off[pairing.reference.window.phase[off] != pairing.suspect.window.phase[pairing.left[off]]]
    pairing.undo(stolen)


def pair_exact(pairing: Pairing) -> None:
    """Pair events of one gap that are the same in operator, arguments, phase and all bytes, trivial ones included."""
    reference, suspect = pairing.reference, pairing.suspect
    gaps = pairing.gaps()
    for place in (True, False):
        left = np.concatenate([gap.left for gap in gaps] or [np.zeros(0, np.int64)])
        right = np.concatenate([gap.right for gap in gaps] or [np.zeros(0, np.int64)])
        left_gap = np.repeat(np.arange(len(gaps)), [len(gap.left) for gap in gaps])
        right_gap = np.repeat(np.arange(len(gaps)), [len(gap.right) for gap in gaps])
        keep_left, keep_right = pairing.left[left] < 0, pairing.right[right] < 0
        left, left_gap, right, right_gap = left[keep_left], left_gap[keep_left], right[keep_right], right_gap[keep_right]
        keys = []
        for side, events, gap in ((reference, left, left_gap), (suspect, right, right_gap)):
            parts = [gap, side.exact[events]] + ([side.window.site[events], side.window.library_site[events]] if place else [])
            keys.append(combined(*parts))
        a, b = content.join(keys[0], keys[1], left, right)
        order = np.argsort(left[a])
        a, b = a[order], b[order]
        kept = np.zeros(len(a), bool)
        for start, end in _runs(left_gap[a]):
            kept[start:end] = longest_rising(right[b[start:end]])
        pairing.add(left[a[kept]], right[b[kept]], EXACT)
    pairing.lay_skeleton()


def _runs(groups: Ints) -> list[tuple[int, int]]:
    """Start and end of each run of equal values."""
    if not len(groups):
        return []
    cuts = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    return list(zip([0, *cuts.tolist()], [*cuts.tolist(), len(groups)], strict=True))


def anchor_large_gaps(pairing: Pairing) -> None:
    """Cut gaps too large for all-against-all at events that look the same in the code and are equally many."""
    for name in ("structural", "structural_site", "structural_loose"):
        large = [gap for gap in pairing.gaps() if gap.cells > ANCHORED_CELLS]
        for gap in large:
            pairing_keys = getattr(pairing.reference, name)[gap.left], getattr(pairing.suspect, name)[gap.right]
            a, b = content.join(*pairing_keys, gap.left, gap.right)
            order = np.argsort(a)
            a, b = a[order], b[order]
            kept = longest_rising(b)
            left = gap.left[a[kept]]
            pairing.add(left, gap.right[b[kept]], ANCHOR)
            pairing.extend_skeleton(left)


def solve_gaps(pairing: Pairing, gaps: list[Gap], how: int) -> None:
    """Pair inside gaps by dynamic programming; `EVIDENCE` asks for equal content, other passes for equal structure."""

    def score(left: Ints, right: Ints) -> tuple[Scores, Flags]:
        cells = evidence.score(pairing.reference, pairing.suspect, left, right)
        return cells.score, cells.evident if how == EVIDENCE else cells.structural

    left, right, banded = solve(gaps, score)
    pairing.add(left, right, how)
    pairing.banded += banded
    pairing.extend_skeleton(left)


def pair_leftovers(pairing: Pairing) -> None:
    """Pair what is left by equal outputs, out of order; may take a partner from a pair whose outputs differ."""
    reference, suspect = pairing.reference, pairing.suspect
    for name in ("produced_in_order", "produced", "output_order", "output_content"):
        weak = (pairing.how == EVIDENCE) | (pairing.how == ANCHOR)
        paired = np.flatnonzero(weak)
        differ = reference.output_content[paired] != suspect.output_content[pairing.left[paired]]
        left = np.concatenate([pairing.free_left(), paired[differ]])
        right = np.concatenate([pairing.free_right(), pairing.left[paired[differ]]])
        left, right = left[reference.has_content[left]], right[suspect.has_content[right]]
        left_keys, right_keys = getattr(reference, name)[left], getattr(suspect, name)[right]
        common = np.intersect1d(left_keys, right_keys)
        left, left_keys = _grouped(left, left_keys, common)
        right, right_keys = _grouped(right, right_keys, common)
        starts = np.searchsorted(left_keys, common), np.searchsorted(right_keys, common)
        ends = np.searchsorted(left_keys, common, "right"), np.searchsorted(right_keys, common, "right")
        for a, b, c, d in zip(starts[0].tolist(), ends[0].tolist(), starts[1].tolist(), ends[1].tolist(), strict=True):
            for i, j in _preferred(reference, suspect, np.sort(left[a:b]), np.sort(right[c:d])):
                for taken in {i, int(pairing.right[j])}:
                    if taken >= 0 and pairing.left[taken] >= 0:
                        pairing.undo(taken)
                pairing.add(i, j, LEFTOVER)
    pairing.lay_skeleton()


def _grouped(events: Ints, keys: Words, common: Words) -> tuple[Ints, Words]:
    keep = np.isin(keys, common)
    events, keys = events[keep], keys[keep]
    order = np.lexsort((events, keys))
    return events[order], keys[order]


def _preferred(reference: Features, suspect: Features, left: Ints, right: Ints) -> list[tuple[int, int]]:
    """Pairs of one class of equal content: same phase first, then most equal inputs, then same site, then order."""
    if len(left) > _CROWD or len(right) > _CROWD:
        return list(zip(left.tolist(), right.tolist(), strict=False))
    rows, columns = np.repeat(left, len(right)), np.tile(right, len(left))
    same_phase = reference.window.phase[rows] == suspect.window.phase[columns]
    inputs = evidence.equal_inputs(reference, suspect, rows, columns)
    same_site = reference.window.site[rows] == suspect.window.site[columns]
    rank = np.abs(np.searchsorted(left, rows) - np.searchsorted(right, columns))
    order = np.lexsort((columns, rows, rank, ~same_site, -inputs, ~same_phase))
    pairs: list[tuple[int, int]] = []
    used_left: set[int] = set()
    used_right: set[int] = set()
    for i, j in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if i not in used_left and j not in used_right:
            pairs.append((i, j))
            used_left.add(i)
            used_right.add(j)
    return pairs
