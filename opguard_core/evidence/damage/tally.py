"""One pass over both blocks: how many elements differ, where, by how much, in which bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from opguard_core.evidence.damage.elements import Array, Elements, pairs
from opguard_core.evidence.damage.touched import MAX_SHOWN, Touched

_MAX_SQUARES = 1e300
_POWERS = np.array([1 << bit for bit in range(64)], dtype=np.uint64)


@dataclass
class Sums:
    """Sums over pairs of finite numbers that differ."""

    count: int = 0
    reference: float = 0.0
    suspect: float = 0.0
    squares_reference: float = 0.0
    squares_suspect: float = 0.0
    products: float = 0.0
    squares_difference: float = 0.0
    max_abs: float = 0.0
    opposite: int = 0

    def add(self, reference: npt.NDArray[np.float64], suspect: npt.NDArray[np.float64]) -> None:
        """Take the numbers of one chunk; those that are not finite are left out."""
        finite = np.isfinite(reference) & np.isfinite(suspect)
        left, right = reference[finite], suspect[finite]
        if not left.size:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            apart = right - left
            self.count += int(left.size)
            self.reference += float(left.sum())
            self.suspect += float(right.sum())
            self.squares_reference += float((left * left).sum())  # not a dot product: those vary with threads and machine
            self.squares_suspect += float((right * right).sum())
            self.products += float((left * right).sum())
            self.squares_difference += float((apart * apart).sum())
            self.max_abs = max(self.max_abs, float(np.abs(apart).max()))
            self.opposite += int(np.count_nonzero(np.sign(left) * np.sign(right) < 0))

    @property
    def correlation(self) -> float | None:
        """Between both sides; None where it means nothing, or lies beyond what float64 can sum."""
        if self.count <= 2 or max(self.squares_reference, self.squares_suspect) > _MAX_SQUARES:
            return None
        left = self.squares_reference - self.reference * self.reference / self.count
        right = self.squares_suspect - self.suspect * self.suspect / self.count
        both = self.products - self.reference * self.suspect / self.count
        return both / (left**0.5 * right**0.5) if left > 0 and right > 0 else None

    @property
    def relative(self) -> float | None:
        """Root of the mean square of the difference, in those of the reference."""
        return (self.squares_difference / self.squares_reference) ** 0.5 if 0 < self.squares_reference <= _MAX_SQUARES else None


@dataclass
class Tally:
    """What one pass counts.

    Attributes:
        elements: All.
        differing: Elements whose bytes differ.
        first: The first of them.
        histogram: Of distances: 0, 1, 2, 3-4, 5-8, ...
        max_distance: Largest distance; None if no pair of numbers differs.
        flips: Per bit of a component, how often it differs.
        single_bit: Elements that differ in one bit.
        same_bits: The pattern that differs, where it is the same in all.
        signs: Components that differ in their sign.
        negated: Components that differ in nothing but their sign.
        fills: Of each side, the code that all its differing components have, or None.
        zeros: Of each side, differing components that are zero.
        blanks: Differing components where a side has zero or minus infinity, as masks leave them.
        largest: The pair whose reference is farthest from zero.
        smallest: The pair whose reference is nearest to zero.
    """

    elements: int
    touched: Touched
    differing: int = 0
    first: list[dict[str, Any]] = field(default_factory=list)
    histogram: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(66, dtype=np.int64))
    max_distance: int | None = None
    flips: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    components: int = 0
    single_bit: int = 0
    same_bits: int | None = None
    signs: int = 0
    negated: int = 0
    nan_appeared: int = 0
    nan_vanished: int = 0
    inf_appeared: int = 0
    inf_vanished: int = 0
    fills: list[int | None] = field(default_factory=lambda: [None, None])
    zeros: list[int] = field(default_factory=lambda: [0, 0])
    blanks: int = 0
    sums: Sums = field(default_factory=Sums)
    largest: tuple[float, float] = (0.0, 0.0)
    smallest: tuple[float, float] = (float("inf"), 0.0)


def tally(elements: Elements, reference: Array, suspect: Array, shape: tuple[int, ...]) -> Tally:
    """Count.

    Args:
        elements: The dtype.
        reference: Its components.
        suspect: As many.
        shape: Lengths.

    Cost: one comparison an element, and about 100 ns an element that differs; some 30 MiB of memory.
    """
    parts = elements.element.num_components
    found = Tally(reference.size // parts, Touched(shape))
    found.flips = np.zeros(elements.bits, dtype=np.int64)
    for start, left, right in pairs(reference, suspect, parts):
        unequal = left != right
        rows = np.flatnonzero(unequal.any(axis=1))
        if rows.size:
            found.differing += int(rows.size)
            found.touched.add(rows.astype(np.int64) + start)
            for row in rows[: MAX_SHOWN - len(found.first)]:
                found.first.append(_shown(elements, start + int(row), shape, left[row], right[row]))
            _bits(found, elements, left[rows], right[rows])
            mask = unequal[rows]
            _numbers(found, elements, left[rows][mask], right[rows][mask])
    return found


def _shown(elements: Elements, position: int, shape: tuple[int, ...], left: Array, right: Array) -> dict[str, Any]:
    """One element that differs."""
    width = elements.bits // 4
    shown: dict[str, Any] = {
        "index": [int(number) for number in np.unravel_index(position, shape)] if shape else [],
        "reference": elements.text(left),
        "suspect": elements.text(right),
        "reference_bits": " ".join(f"0x{int(code):0{width}x}" for code in left),
        "suspect_bits": " ".join(f"0x{int(code):0{width}x}" for code in right),
    }
    values = np.concatenate([elements.values(left), elements.values(right)])
    if elements.kind in ("float", "integer") and not np.isnan(values).any():
        shown["distance"] = int(elements.distance(left, right).max())
    return shown


def _bits(found: Tally, elements: Elements, left: Array, right: Array) -> None:
    apart = np.ascontiguousarray(left ^ right)
    bits = np.unpackbits(apart.view(np.uint8).reshape(apart.size, -1), axis=1, bitorder="little")
    found.flips += bits.sum(axis=0, dtype=np.int64)
    each = bits.reshape(apart.shape[0], -1).sum(axis=1, dtype=np.int64)
    found.single_bit += int(np.count_nonzero(each == 1))
    patterns = apart[apart != 0]
    first = int(patterns[0])
    if not found.components:
        found.same_bits = first
    if found.same_bits is not None and not (patterns == found.same_bits).all():
        found.same_bits = None
    found.components += int(patterns.size)
    if elements.signed:
        top = elements.codes.type(1 << (elements.bits - 1))
        found.signs += int(np.count_nonzero(apart & top))
        if elements.kind == "float":
            found.negated += int(np.count_nonzero(apart == top))


def _numbers(found: Tally, elements: Elements, left: Array, right: Array) -> None:
    for side, codes in enumerate((left, right)):
        before = found.components - codes.size
        if not before:
            found.fills[side] = int(codes[0])
        if found.fills[side] is not None and not (codes == found.fills[side]).all():
            found.fills[side] = None
    if elements.kind == "bits":
        return
    reference, suspect = elements.values(left), elements.values(right)
    found.blanks += int(np.count_nonzero(_blank(reference) | _blank(suspect)))
    for side, values in enumerate((reference, suspect)):
        found.zeros[side] += int(np.count_nonzero(values == 0))
    nans = np.isnan(reference), np.isnan(suspect)
    infs = np.isinf(reference), np.isinf(suspect)
    found.nan_appeared += int(np.count_nonzero(nans[1] & ~nans[0]))
    found.nan_vanished += int(np.count_nonzero(nans[0] & ~nans[1]))
    found.inf_appeared += int(np.count_nonzero(infs[1] & ~infs[0]))
    found.inf_vanished += int(np.count_nonzero(infs[0] & ~infs[1]))
    numbers = ~(nans[0] | nans[1])
    if numbers.any() and elements.kind != "bool":
        distances = elements.distance(left[numbers], right[numbers])
        found.max_distance = max(found.max_distance or 0, int(distances.max()))
        buckets = np.where(distances > 0, 1 + np.searchsorted(_POWERS, distances), 0)
        found.histogram += np.bincount(buckets, minlength=66)
    found.sums.add(reference, suspect)
    _candidates(found, reference, suspect)


def _blank(values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.logical_or(values == 0, values == -np.inf)
    return found


def _candidates(found: Tally, reference: npt.NDArray[np.float64], suspect: npt.NDArray[np.float64]) -> None:
    """Pairs that a constant factor or shift is best read from: the largest and the smallest number of the reference."""
    usable = np.isfinite(reference) & np.isfinite(suspect)
    left, right = reference[usable], suspect[usable]
    if not left.size:
        return
    sizes = np.abs(left)
    large, small = int(sizes.argmax()), int(sizes.argmin())
    if sizes[large] > abs(found.largest[0]):
        found.largest = float(left[large]), float(right[large])
    if sizes[small] < abs(found.smallest[0]):
        found.smallest = float(left[small]), float(right[small])


def histogram(found: Tally) -> list[dict[str, int]]:
    """The buckets that are not empty, each with its least and largest distance."""
    shown = []
    for bucket, count in enumerate(found.histogram.tolist()):
        if count:
            low = bucket if bucket < 3 else (1 << (bucket - 2)) + 1
            high = bucket if bucket < 3 else 1 << (bucket - 1)
            shown.append({"from": low, "to": high, "count": count})
    return shown
