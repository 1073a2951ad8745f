"""What differs between two tensors, byte by byte, and what kind of damage that looks like. numpy only.

Blocks are row-major and little-endian, as kept files hold them. Memory beyond the two blocks is bounded (some 30 MiB, up to 300 while an
order is looked for); what comes out is some kB at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opguard_core.evidence.damage.description import Damage
from opguard_core.evidence.damage.elements import Array, Block, Elements, of_block, pairs
from opguard_core.evidence.damage.likely import CONFINED_SHARE, DENSE_SHARE, Seen, likely
from opguard_core.evidence.damage.order import find_order
from opguard_core.evidence.damage.relations import relations
from opguard_core.evidence.damage.slices import equal_slices, slice_digests
from opguard_core.evidence.damage.tally import Tally, histogram, tally
from opguard_core.evidence.damage.unlike import unlike

_MAX_SLICES = 1 << 22
_MAX_COPIED = 8

__all__ = ["Block", "Damage", "describe"]


def describe(reference: Block, suspect: Block, others: Mapping[str, Block] | None = None) -> Damage:
    """Describe what differs.

    Args:
        reference: Bytes of one side.
        suspect: Of the other.
        others: Further tensors of the suspect, such as its inputs: the suspect may hold their bytes.

    Returns:
        The description; ``likely`` is "none" where all bytes are equal.

    Raises:
        ValueError: A block has not as many bytes as its shape says.

    Cost: one comparison of the bytes; 0.1 to 0.5 us an element that differs; for permutations 10 ns an element and axis.
    """
    shape = tuple(reference.shape)
    if reference.dtype != suspect.dtype or shape != tuple(suspect.shape):
        return unlike(reference, suspect)
    elements = of_block(reference)
    left, right = elements.read(reference), elements.read(suspect)
    found = tally(elements, left, right, shape)
    if not found.differing:
        return Damage("none", "all bytes are equal", (reference.dtype,) * 2, (shape, shape), found.elements, 0)
    order = find_order(elements, left, right, shape) if found.differing > 1 else None
    related = relations(elements, left, right, found) if order is None else []
    copied = _copied(elements, left, right, found, shape) if order is None else ()
    seen = Seen(elements, found, order, related, _stale(elements, left, right, suspect, others or {}), copied)
    guess = likely(seen)
    return Damage(
        likely=guess.name,
        rule=guess.rule,
        alternatives=guess.alternatives,
        dtypes=(reference.dtype, suspect.dtype),
        shapes=(shape, shape),
        elements=found.elements,
        differing=found.differing,
        first=found.first,
        axes=found.touched.axes() if shape else [],
        stride=found.touched.stride(),
        block=found.touched.block,
        distance=_distance(elements, found),
        bits=_bits(elements, found),
        special=_special(found),
        size=_size(found),
        order=order,
        relations=[{"relation": one.name, "value": one.detail, **one.facts} for one in related],
    )


def _distance(elements: Elements, found: Tally) -> dict[str, Any]:
    if found.max_distance is None:
        return {}
    return {"unit": "ulp" if elements.kind == "float" else "difference", "max": found.max_distance, "histogram": histogram(found)}


def _bits(elements: Elements, found: Tally) -> dict[str, Any]:
    flipped = [{"bit": int(bit), "is": elements.bit_name(int(bit)), "count": int(found.flips[bit])} for bit in np.flatnonzero(found.flips)]
    pattern = {} if found.same_bits is None else {"pattern": f"0x{found.same_bits:0{elements.bits // 4}x}"}
    return {"width": elements.bits, "flipped": flipped, "single_bit_elements": found.single_bit, **pattern}


def _special(found: Tally) -> dict[str, int]:
    counts = {
        "nan_appeared": found.nan_appeared,
        "nan_vanished": found.nan_vanished,
        "inf_appeared": found.inf_appeared,
        "inf_vanished": found.inf_vanished,
        "signs_differ": found.signs,
        "only_sign_differs": found.negated,
        "zero_in_reference": found.zeros[0],
        "zero_in_suspect": found.zeros[1],
    }
    return {name: count for name, count in counts.items() if count}


def _size(found: Tally) -> dict[str, float]:
    sums = found.sums
    facts = {"max_abs": sums.max_abs if sums.count else None, "relative_rms": sums.relative, "correlation": sums.correlation}
    return {name: float(f"{value:.6g}") for name, value in facts.items() if value is not None and np.isfinite(value)}


def _stale(elements: Elements, left: Array, right: Array, suspect: Block, others: Mapping[str, Block]) -> str:
    """The other tensor whose bytes the suspect has at all positions where it differs from the reference."""
    for name, other in others.items():
        if other.dtype != suspect.dtype or tuple(other.shape) != tuple(suspect.shape):
            continue
        third = elements.read(other)
        step = elements.element.num_components
        if all(
            (third[start * step : start * step + one.size].reshape(one.shape) == two)[one != two].all()
            for start, one, two in pairs(left, right, step)
        ):
            return name
    return ""


def _copied(elements: Elements, left: Array, right: Array, found: Tally, shape: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """Touched slices of an axis that hold another slice of the reference, whole."""
    whole = (*shape, elements.element.num_components)
    for axis in range(len(shape) if found.elements > max(shape, default=0) else 0):
        touched = np.flatnonzero(found.touched.slices(axis))
        dense = found.differing >= DENSE_SHARE * touched.size * (found.elements // shape[axis])
        confined = 0 < touched.size <= CONFINED_SHARE * shape[axis]
        if not (dense and confined and found.touched.is_exact(axis)) or shape[axis] > _MAX_SLICES:
            continue
        digests = slice_digests(left, whole, axis), slice_digests(right, whole, axis)
        sources = {int(word): index for index, word in reversed(list(enumerate(digests[0].tolist())))}
        mapping = np.arange(shape[axis])
        for index in touched.tolist():
            mapping[index] = sources.get(int(digests[1][index]), -1)
        if (mapping >= 0).all() and equal_slices(left, right, whole, axis, mapping):
            return tuple((axis, index, int(mapping[index])) for index in touched.tolist()[:_MAX_COPIED])
    return ()
