"""One pass that tries relations between both sides, each dropped as soon as an element contradicts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from opguard_core.evidence.damage.elements import Array, Elements, pairs
from opguard_core.evidence.damage.lowering import lower_precisions
from opguard_core.evidence.damage.tally import Tally

Values = npt.NDArray[np.float64]
MIN_ELEMENTS = 4
"""Fewer elements that differ show no constant factor and no constant shift."""

_SLACK = 4.0
_BEYOND = 8.0
_SIMPLE = 64


@dataclass
class Relation:
    """Something that may hold for every element.

    Attributes:
        name: "factor", "shift", "cast", "cast back" or "coarse".
        detail: The value, or the precision.
        holds: Whether it holds for one chunk: reference, suspect, which differ.
    """

    name: str
    detail: str
    holds: Callable[[Values, Values, npt.NDArray[np.bool_]], bool]
    facts: dict[str, Any] = field(default_factory=dict)


def relations(elements: Elements, reference: Array, suspect: Array, found: Tally) -> list[Relation]:
    """The relations that hold for all elements.

    Args:
        elements: The dtype.
        reference: All components.
        suspect: As many.
        found: What the first pass counted.

    Cost: reads chunks that differ, and all of them while a cast is possible.
    """
    if elements.kind not in ("float", "integer"):
        return []
    alive = [*_constants(elements, found), *_casts(elements)]
    coarse = {relation.detail: [True, True] for relation in alive if relation.name == "cast"}
    rounders = lower_precisions(elements.element.name)
    for _, left, right in pairs(reference, suspect, elements.element.num_components):
        everywhere = any(any(sides) for sides in coarse.values()) or any(relation.name.startswith("cast") for relation in alive)
        if not alive and not everywhere:
            break
        differ = (left != right).ravel()
        if not everywhere and not differ.any():
            continue
        values = elements.values(left.ravel()), elements.values(right.ravel())
        alive = [relation for relation in alive if relation.holds(*values, differ)]
        for name, sides in coarse.items():
            for side in (0, 1):
                sides[side] = sides[side] and _same(rounders[name](values[side]), values[side])
    return [*alive, *_coarse(coarse)]


def _coarse(coarse: dict[str, list[bool]]) -> list[Relation]:
    """One side has only values that a lower precision can hold, the other has not; the coarsest such precision of that side."""
    found = []
    for side, name in enumerate(("reference", "suspect")):
        holding = [precision for precision, sides in coarse.items() if sides[side] and not sides[1 - side]]
        if holding:
            found.append(Relation("coarse", holding[-1], lambda *_: True, {"side": name}))
    return found


def _constants(elements: Elements, found: Tally) -> list[Relation]:
    """A factor and a shift, read from single pairs of numbers."""
    alive: list[Relation] = []
    if found.sums.count < MIN_ELEMENTS:
        return alive
    large, small = found.largest, found.smallest
    ratio = large[1] / large[0] if large[0] else 0.0
    if ratio not in (0.0, 1.0) and np.isfinite(ratio):
        factor = _simplest(ratio, elements)
        alive.append(Relation("factor", repr(factor), lambda left, right, differ: _factor_holds(elements, factor, left, right, differ)))
    apart = small[1] - small[0]
    if np.isfinite(apart) and apart:
        shift = _shortest(apart, _unit(elements) * abs(small[1]))
        told = repr(int(shift)) if elements.kind == "integer" else repr(shift)
        alive.append(Relation("shift", told, lambda left, right, differ: _shift_holds(elements, shift, left, right, differ)))
    return alive


def _simplest(factor: float, elements: Elements) -> float:
    """A fraction of small numbers, if the factor is one as far as the precision shows; else the factor."""
    for denominator in range(1, _SIMPLE + 1):
        numerator = round(factor * denominator)
        if numerator and abs(numerator) <= _SIMPLE and abs(factor - numerator / denominator) <= 2 * _unit(elements) * abs(factor):
            return numerator / denominator
    return _shortest(factor, _unit(elements) * abs(factor))


def _shortest(shift: float, within: float) -> float:
    """The number of fewest digits that a shift may be, as far as the precision shows."""
    return next((short for digits in range(1, 18) if abs((short := float(f"{shift:.{digits}g}")) - shift) <= within), shift)


def _unit(elements: Elements) -> float:
    """Relative distance of neighbouring values; integers are exact."""
    return 2.0**-elements.mantissa_bits if elements.kind == "float" else 0.0


def _tiny(elements: Elements) -> float:
    """The smallest step near zero."""
    if elements.kind != "float":
        return 0.0
    return float(elements.values(np.array([1], dtype=elements.codes))[0]) if elements.bits <= 32 else 5e-324


def _factor_holds(elements: Elements, factor: float, left: Values, right: Values, differ: npt.NDArray[np.bool_]) -> bool:
    """Every number that differs is the other times the factor, to a few ULP, and the factor changes more than rounding does."""
    if abs(factor - 1) <= _BEYOND * _SLACK * _unit(elements):
        return False
    use = differ & np.isfinite(left) & np.isfinite(right)
    if not _overflows(left * np.sign(factor), right, differ & ~use):
        return False
    wanted = left[use] * factor
    allowed = _SLACK * _unit(elements) * np.abs(wanted) + _SLACK * _tiny(elements)
    return bool((np.abs(right[use] - wanted) <= allowed).all())


def _overflows(signed: Values, right: Values, odd: npt.NDArray[np.bool_]) -> bool:
    """Whether a factor can give all that is not finite: NaN of NaN, an infinity of one or of a number of its sign."""
    one, other = signed[odd], right[odd]
    return bool(((np.isnan(one) & np.isnan(other)) | (np.isinf(other) & (np.sign(one) == np.sign(other)))).all())


def _shift_holds(elements: Elements, shift: float, left: Values, right: Values, differ: npt.NDArray[np.bool_]) -> bool:
    """Every number that differs plus the shift, to a few ULP of the larger one; the shift is more than that."""
    use = differ & np.isfinite(left) & np.isfinite(right)
    if not _same(left[differ & ~use], right[differ & ~use]):
        return False
    larger = np.maximum(np.abs(left[use]), np.abs(right[use]))
    allowed = _SLACK * _unit(elements) * np.maximum(larger, abs(shift)) + _SLACK * _tiny(elements)
    close = np.abs(right[use] - left[use] - shift) <= allowed
    return bool(close.all() and (abs(shift) > _BEYOND * allowed).all())


def _casts(elements: Elements) -> list[Relation]:
    """A pass of one side through a lower precision gives the other."""
    alive = []
    for name, rounder in lower_precisions(elements.element.name).items():
        alive.append(Relation("cast", name, lambda left, right, differ, rounder=rounder: _same(rounder(left), right)))  # type: ignore[misc]
        alive.append(Relation("cast back", name, lambda left, right, differ, rounder=rounder: _same(rounder(right), left)))  # type: ignore[misc]
    return alive


def _same(left: Values, right: Values) -> bool:
    """Equal numbers; NaN equals NaN."""
    return bool(((left == right) | (np.isnan(left) & np.isnan(right))).all())
