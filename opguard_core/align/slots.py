"""How two slots compare, and which slots of two paired events stand for each other.

Equal bytes, a cast, another layout and unknown content count as "same"; a permutation and anything else is a difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.columns import Flags, Ints, Window, combined
from opguard_core.align.evidence import commutes

EQUAL, CAST, LAYOUT, UNKNOWN, PERMUTED, DIFFERENT = range(6)
NAMES = ("equal", "cast", "layout", "unknown", "permuted", "different")
UNMATCHED = 255

LAST_SAME = UNKNOWN
"""Codes up to this one are no difference."""

Codes = NDArray[np.uint8]


def compare(reference: Window, suspect: Window, left: Ints, right: Ints) -> Codes:
    """Compare slot rows left[k] and right[k].

    A permutation is reported wherever the elements are the same and their order is not, unless the shapes themselves are
    permuted; whether it is a carried layout is for `layout.resolve`, which knows where the data came from.

    Returns:
        uint8[k] of EQUAL … DIFFERENT.
    """
    codes = np.full(len(left), DIFFERENT, np.uint8)
    known = reference.known[left] & suspect.known[right]
    same_bag = reference.bag[left] == suspect.bag[right]
    vocabulary = reference.vocabulary
    permuted_shape = vocabulary.layout_class(reference.shape[left]) == vocabulary.layout_class(suspect.shape[right])
    permuted_shape &= vocabulary.layout_order(reference.shape[left]) != vocabulary.layout_order(suspect.shape[right])
    codes[same_bag] = PERMUTED
    codes[same_bag & permuted_shape] = LAYOUT
    codes[reference.value[left] == suspect.value[right]] = CAST
    codes[(reference.mix[left] == suspect.mix[right]) & (reference.dtype[left] == suspect.dtype[right])] = EQUAL
    codes[(reference.nbytes[left] == 0) & (suspect.nbytes[right] == 0)] = EQUAL
    codes[~known] = UNKNOWN
    return codes


@dataclass(eq=False)
class Matched:
    """Slots of paired events, matched one to one.

    Attributes:
        pair: int64[k], index of the pair.
        left: int64[k], reference slot rows.
        right: int64[k], suspect slot rows.
        code: uint8[k], how they compare.
    """

    pair: Ints
    left: Ints
    right: Ints
    code: Codes

    @property
    def same(self) -> Flags:
        """bool[k]."""
        return self.code <= LAST_SAME


def match(reference: Window, suspect: Window, left: Ints, right: Ints, *, outputs: bool) -> Matched:
    """Match the outputs, or the reads, of pairs of events: equal slot names first, the others in order.

    Args:
        reference: Reference window.
        suspect: Suspect window.
        left: int64[p], reference event of each pair.
        right: int64[p], suspect event of each pair.
        outputs: Outputs instead of reads.
    """
    sides = [_rows(window, events, outputs) for window, events in ((reference, left), (suspect, right))]
    pairs, rows_a, rows_b = _match_alike(reference, suspect, *sides)
    rest = np.ones(len(left), bool)
    rest[pairs] = False
    more = _match_unlike(reference, suspect, *[(rows[rest[pair]], pair[rest[pair]]) for rows, pair in sides])
    pair, rows_a, rows_b = (np.concatenate(parts) for parts in zip((pairs, rows_a, rows_b), more, strict=True))
    order = np.lexsort((rows_a, pair)) if len(more[0]) else np.arange(len(pair))
    rows_a, rows_b = rows_a[order], rows_b[order]
    matched = Matched(pair[order], rows_a, rows_b, compare(reference, suspect, rows_a, rows_b))
    return matched if outputs else _uncross(reference, suspect, left, matched)


def _rows(window: Window, events: Ints, outputs: bool) -> tuple[Ints, Ints]:
    """Slot rows of each event, in order of the pairs, and the pair each belongs to."""
    all_rows, first = (window.output_rows, window.output_first) if outputs else (window.read_rows, window.read_first)
    counts = first[events + 1] - first[events]
    pair = np.repeat(np.arange(len(events)), counts)
    within = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    return all_rows[np.repeat(first[events], counts) + within], pair


def _match_alike(reference: Window, suspect: Window, left: tuple[Ints, Ints], right: tuple[Ints, Ints]) -> tuple[Ints, Ints, Ints]:
    """Slots of the pairs whose events have the same slot names in the same order, which is nearly all."""
    count = int(max(left[1][-1] if len(left[1]) else -1, right[1][-1] if len(right[1]) else -1)) + 1
    sizes = np.bincount(left[1], minlength=count), np.bincount(right[1], minlength=count)
    alike = sizes[0] == sizes[1]
    rows_a, rows_b = (rows[alike[pair]] for rows, pair in (left, right))
    pair = left[1][alike[left[1]]]
    unlike = pair[reference.slot[rows_a] != suspect.slot[rows_b]]
    if len(unlike):
        alike[unlike] = False
        keep = alike[pair]
        pair, rows_a, rows_b = pair[keep], rows_a[keep], rows_b[keep]
    return pair, rows_a, rows_b


def _match_unlike(reference: Window, suspect: Window, left: tuple[Ints, Ints], right: tuple[Ints, Ints]) -> tuple[Ints, Ints, Ints]:
    """Slots of other pairs: equal names first, the rest in order."""
    (left_rows, left_pair), (right_rows, right_pair) = left, right
    a, b = _join(combined(left_pair, reference.slot[left_rows]), combined(right_pair, suspect.slot[right_rows]))
    rest_a, rest_b = _others(a, len(left_rows)), _others(b, len(right_rows))
    c, d = _join(combined(left_pair[rest_a], _rank(left_pair[rest_a])), combined(right_pair[rest_b], _rank(right_pair[rest_b])))
    return (
        np.concatenate([left_pair[a], left_pair[rest_a[c]]]),
        np.concatenate([left_rows[a], left_rows[rest_a[c]]]),
        np.concatenate([right_rows[b], right_rows[rest_b[d]]]),
    )


def _join(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    _, a, b = np.intersect1d(left, right, return_indices=True)
    return a, b


def _others(taken: Ints, count: int) -> Ints:
    free = np.ones(count, bool)
    free[taken] = False
    return np.flatnonzero(free)


def _rank(groups: Ints) -> Ints:
    """Position of each element inside its run of equal, sorted group numbers."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def _uncross(reference: Window, suspect: Window, left_events: Ints, matched: Matched) -> Matched:
    """Swap the first two operands of a commutative operator where that makes both sides read the same."""
    texts = reference.vocabulary.texts
    bad_pairs = np.unique(matched.pair[~matched.same])
    at = np.searchsorted(matched.pair, bad_pairs)
    ends = np.searchsorted(matched.pair, bad_pairs, "right")
    for pair, start, end in zip(bad_pairs.tolist(), at.tolist(), ends.tolist(), strict=True):
        if end - start != 2 or not commutes(texts[int(reference.op[left_events[pair]])]):
            continue
        crossed = compare(reference, suspect, matched.left[start:end], matched.right[start:end][::-1])
        if (crossed <= LAST_SAME).sum() > (matched.code[start:end] <= LAST_SAME).sum():
            matched.right[start:end] = matched.right[start:end][::-1].copy()
            matched.code[start:end] = crossed
    return matched
