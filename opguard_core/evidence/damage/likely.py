"""The likely class of damage: the first rule that fits, told with its numbers. Nothing fits: unknown.

A class is a hint where to look, not a proof of a cause: the bytes tell what changed, not why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from opguard_core.evidence.damage.elements import Elements
from opguard_core.evidence.damage.relations import Relation
from opguard_core.evidence.damage.tally import Tally

CLASSES = (
    "none",
    "single bit",
    "sign",
    "permutation",
    "layout",
    "stale",
    "copied rows",
    "zeroed",
    "mask",
    "scale",
    "shift",
    "cast",
    "reduction order",
    "row corruption",
    "not finite",
    "unrelated",
    "unknown",
)
CONFINED_SHARE = 0.25
DENSE_SHARE = 0.5
_FEW = 4
_LOW_PRECISION_BITS = 10
_MANY = 16


@dataclass(frozen=True)
class Likely:
    """A class, the rule that led there, and the classes that the same bytes would fit, too."""

    name: str
    rule: str
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seen:
    """All that rules look at.

    Attributes:
        elements: The dtype.
        tally: What was counted.
        order: The permutation, if it is one.
        relations: What holds for all elements.
        stale: Slot whose bytes the suspect has where it differs; empty if none.
        copied: Slices of the suspect that are other slices of the reference: axis, index, index of the reference.
    """

    elements: Elements
    tally: Tally
    order: dict[str, Any] | None
    relations: list[Relation]
    stale: str = ""
    copied: tuple[tuple[int, int, int], ...] = ()

    @property
    def distance(self) -> str:
        """The largest distance in words."""
        return f"{self.tally.max_distance} {'ULP' if self.elements.kind == 'float' else 'apart'}"

    def related(self, name: str) -> Relation | None:
        """The relation of a name that holds."""
        return next((relation for relation in self.relations if relation.name == name), None)

    def precisions(self, name: str) -> str:
        """All lower precisions for which a relation holds: numbers that two of them hold alike do not tell which it was."""
        return " or ".join(relation.detail for relation in self.relations if relation.name == name)


def likely(seen: Seen) -> Likely:
    """The first rule that fits."""
    if not seen.tally.differing:
        return Likely("none", "all bytes are equal")
    for rule in _RULES:
        found = rule(seen)
        if found is not None:
            return found
    return Likely("unknown", f"{_count(seen.tally)}, and no rule fits")


def _count(tally: Tally) -> str:
    return f"{tally.differing} of {tally.elements} elements differ"


def _boolean(seen: Seen) -> Likely | None:
    tally = seen.tally
    if seen.elements.kind != "bool":
        return None
    return Likely("mask", f"the tensor is of bool; {_count(tally)}", ("single bit",) if tally.single_bit == tally.differing == 1 else ())


def _one_bit(seen: Seen) -> Likely | None:
    tally = seen.tally
    if tally.differing != 1 or tally.single_bit != 1:
        return None
    bit = int(np.flatnonzero(tally.flips)[0])
    if tally.elements == 1:
        text = f"the one element differs, in bit {bit} alone ({seen.elements.bit_name(bit)}); one number shows no pattern"
        return Likely("unknown", text, ("single bit", "shift" if seen.elements.kind == "integer" else "reduction order"))
    small = tally.max_distance is not None and tally.max_distance <= 1
    integer = seen.elements.kind == "integer"
    other = ("shift", "unknown") if integer else ("reduction order",) if small else ()
    return Likely("single bit", f"one of {tally.elements} elements differs, in bit {bit} alone ({seen.elements.bit_name(bit)})", other)


def _negated(seen: Seen) -> Likely | None:
    tally = seen.tally
    if not tally.negated or tally.negated != tally.components:
        return None
    return Likely("sign", f"{_count(tally)}, all in the sign alone", ("scale",) if tally.differing == tally.elements else ())


def _permuted(seen: Seen) -> Likely | None:
    order = seen.order
    if order is None:
        return None
    name = "layout" if order["kind"] in ("transpose", "view") else "permutation"
    return Likely(name, f"the same elements in another order ({order['known']}): {order['text']}")


def _stale(seen: Seen) -> Likely | None:
    if not seen.stale or seen.tally.differing < _FEW:
        return None
    return Likely("stale", f"where the suspect differs it holds the bytes of its {seen.stale} at the same positions", ("unknown",))


def _copied(seen: Seen) -> Likely | None:
    if not seen.copied:
        return None
    axis, index, source = seen.copied[0]
    more = f" (and {len(seen.copied) - 1} more)" if len(seen.copied) > 1 else ""
    return Likely("copied rows", f"index {index} of axis {axis} holds what the reference has at index {source} of it{more}")


def _blanked(seen: Seen) -> Likely | None:
    tally = seen.tally
    if tally.differing < _FEW:
        return None
    block = tally.touched.block or tally.differing == tally.elements
    if tally.zeros[1] == tally.components and (block or _confined(seen)):
        where = "make a block" if block else f"lie in {_confined(seen)}"
        return Likely("zeroed", f"{_count(tally)}; all of them are zero in the suspect, and they {where}", ("mask",))
    if tally.blanks == tally.components:
        return Likely("mask", f"{_count(tally)}; in each, one side has zero or minus infinity", ("zeroed",))
    for side, name in enumerate(("reference", "suspect")):
        if tally.fills[side] is not None and tally.fills[1 - side] is None:
            return Likely("mask", f"{_count(tally)}; all of them have one value in the {name}", ("unknown",))
    return None


def _scaled(seen: Seen) -> Likely | None:
    factor = seen.related("factor")
    if factor is None:
        return None
    return Likely("scale", f"{_count(seen.tally)}; each is the reference times {factor.detail}, to a few ULP")


def _same_bit(seen: Seen) -> Likely | None:
    tally = seen.tally
    pattern = tally.same_bits
    if pattern is None or pattern & (pattern - 1) or tally.differing < 2 or (tally.max_distance or 0) <= 1:
        return None
    bit = pattern.bit_length() - 1
    return Likely("single bit", f"{_count(tally)}, each in bit {bit} alone ({seen.elements.bit_name(bit)})", ("unknown",))


def _shifted(seen: Seen) -> Likely | None:
    shift = seen.related("shift")
    if shift is None:
        return None
    return Likely("shift", f"{_count(seen.tally)}; each is the reference plus {shift.detail}, to a few ULP")


def _cast(seen: Seen) -> Likely | None:
    through, back, coarse = seen.precisions("cast"), seen.precisions("cast back"), seen.related("coarse")
    if through:
        return Likely("cast", f"{_count(seen.tally)}; rounding the reference to {through} gives the suspect")
    if back:
        return Likely("cast", f"{_count(seen.tally)}; rounding the suspect to {back} gives the reference")
    if coarse is not None and seen.tally.differing >= _FEW:
        side = coarse.facts["side"]
        other = "reference" if side == "suspect" else "suspect"
        text = (
            f"every value of the {side} is one that {coarse.detail} can hold, of the {other} not; rounding it does not give the other side"
        )
        return Likely("cast", text, ("unknown",))
    return None


def _rounding(seen: Seen) -> Likely | None:
    """The size of rounding: of the whole, and of the worst element."""
    tally, elements = seen.tally, seen.elements
    changed = tally.nan_appeared + tally.nan_vanished + tally.inf_appeared + tally.inf_vanished
    relative = tally.sums.relative
    if elements.kind != "float" or changed or relative is None:
        return None
    low = elements.mantissa_bits <= _LOW_PRECISION_BITS
    unit = 2.0**-elements.mantissa_bits
    within, worst = (2, 8) if low else (32, 1024)
    if relative > within * unit or tally.sums.max_abs > worst * unit * abs(tally.largest[0]):
        return None
    where = _confined(seen)
    size = f"{relative / unit:.2g} units of rounding (root mean square)"
    text = f"{_count(tally)} by {size}, at most {seen.distance}{f', only in {where}' if where else ''}"
    return Likely("reduction order", text, ("cast", *(("row corruption",) if where else ())) if tally.elements > 1 else ("unknown",))


def _rows(seen: Seen) -> Likely | None:
    where = _confined(seen)
    return Likely("row corruption", f"{_count(seen.tally)}, all in {where}; at most {seen.distance}") if where else None


def _not_finite(seen: Seen) -> Likely | None:
    tally = seen.tally
    number = tally.nan_appeared + tally.nan_vanished + tally.inf_appeared + tally.inf_vanished
    if number != tally.components:
        return None
    counts = f"NaN: {tally.nan_appeared} appeared, {tally.nan_vanished} vanished; infinite: {tally.inf_appeared} and {tally.inf_vanished}"
    return Likely("not finite", f"{_count(tally)}, in each of them a number became NaN or infinite or the reverse ({counts})")


def _unrelated(seen: Seen) -> Likely | None:
    tally, correlation = seen.tally, seen.tally.sums.correlation
    if tally.differing < _MANY or 2 * tally.differing < tally.elements or correlation is None:
        return None
    bound = max(0.1, 3 / tally.sums.count**0.5)
    if abs(correlation) > bound:
        return None
    return Likely("unrelated", f"{_count(tally)}; where they differ, the correlation of both sides is {correlation:.2g}")


def _confined(seen: Seen) -> str:
    """Which few slices of an axis hold all that differs, and densely; empty if none do."""
    best, share = "", CONFINED_SHARE
    touched = seen.tally.touched
    for axis in touched.axes():
        length, number = axis["length"], axis["touched"]
        if number and axis["exact"] and number / length <= share and touched.count >= DENSE_SHARE * number * (seen.tally.elements / length):
            if seen.tally.elements == length:  # single elements of a vector are no rows
                continue
            share = number / length
            name = {0: "row", 1: "column"}[axis["axis"]] if len(touched.shape) == 2 else f"index of axis {axis['axis']}"
            best = f"{number} of {length} {name}{'s' if number > 1 and name in ('row', 'column') else ''}"
    return best


_RULES: tuple[Callable[[Seen], Likely | None], ...] = (
    _boolean,
    _one_bit,
    _negated,
    _permuted,
    _blanked,
    _copied,
    _scaled,
    _stale,
    _cast,
    _shifted,
    _not_finite,
    _rounding,
    _same_bit,
    _rows,
    _unrelated,
)
