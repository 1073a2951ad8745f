"""What can be said of two tensors that have different shapes or dtypes: the same numbers, the same elements, a common part, a length."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from opguard_core.evidence.damage.description import Damage
from opguard_core.evidence.damage.elements import CHUNK, Array, Block, Elements, of_block
from opguard_core.evidence.damage.lowering import rounded
from opguard_core.evidence.damage.order import digests

_ROUNDED = ("float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn")


def unlike(reference: Block, suspect: Block) -> Damage:
    """Describe two blocks whose shapes or dtypes differ.

    Raises:
        ValueError: A block has not as many bytes as its shape says.
    """
    kinds = of_block(reference), of_block(suspect)
    codes = kinds[0].read(reference), kinds[1].read(suspect)
    shapes = tuple(reference.shape), tuple(suspect.shape)
    rule, likely, notes = "", "unknown", []
    if shapes[0] == shapes[1]:
        likely, rule = _other_dtype(kinds, codes, (reference.dtype, suspect.dtype))
    elif reference.dtype == suspect.dtype:
        likely, rule, more = _other_shape(kinds[0], codes, shapes)
        notes += more
    else:
        rule = "both shape and dtype differ"
        if codes[0].size == codes[1].size and digests(kinds[0], codes[0]).bag64 == digests(kinds[1], codes[1]).bag64:
            likely, rule = "layout", "another shape and dtype; the same numbers in some order, by bag64"
    elements = codes[0].size // kinds[0].element.num_components
    return Damage(likely, rule, (reference.dtype, suspect.dtype), shapes, elements, None, notes=notes)


def _other_dtype(kinds: tuple[Elements, Elements], codes: tuple[Array, Array], dtypes: tuple[str, str]) -> tuple[str, str]:
    """Elements correspond: are they the same numbers, or one a rounding of the other."""
    if codes[0].size != codes[1].size or "bits" in (kinds[0].kind, kinds[1].kind):
        return "unknown", f"{dtypes[0]} and {dtypes[1]} cannot be compared by value"
    unequal, casts = 0, {(side, name): True for side, name in enumerate((dtypes[1], dtypes[0])) if name in _ROUNDED}
    apart = scale = 0.0
    for start in range(0, codes[0].size, CHUNK):
        values = [kind.values(side[start : start + CHUNK]) for kind, side in zip(kinds, codes, strict=True)]
        unequal += int(np.count_nonzero(~_equal(*values)))
        for side, name in casts:
            casts[side, name] = casts[side, name] and bool(_equal(rounded(values[side], name), values[1 - side]).all())
        finite = np.isfinite(values[0]) & np.isfinite(values[1])
        with np.errstate(over="ignore"):
            apart = max(apart, float(np.abs(values[0][finite] - values[1][finite]).max(initial=0.0)))
            scale = max(scale, float(np.abs(values[0][finite]).max(initial=0.0)))
    if not unequal:
        return "cast", f"the same numbers as {dtypes[0]} and as {dtypes[1]}"
    for (side, name), holds in casts.items():
        if holds:
            return "cast", f"rounding the {('reference', 'suspect')[side]} to {name} gives the other side"
    return (
        "unknown",
        f"{dtypes[0]} against {dtypes[1]}: {unequal} of {codes[0].size} numbers differ, by at most {apart:.6g} (largest {scale:.6g})",
    )


def _equal(left: Any, right: Any) -> Any:
    return (left == right) | (np.isnan(left) & np.isnan(right))


def _other_shape(
    elements: Elements, codes: tuple[Array, Array], shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> tuple[str, str, list[str]]:
    """Same dtype: the same memory seen otherwise, a transpose, a part of the other, or the same elements."""
    said = f"shape {list(shapes[0])} against {list(shapes[1])}"
    if codes[0].size == codes[1].size:
        if np.array_equal(*codes):
            return "layout", f"{said}; the same bytes in the same order", []
        axes = _transposed(elements, codes, shapes)
        if axes:
            return "layout", f"{said}; the reference with its axes in the order ({', '.join(map(str, axes))})", []
        same = digests(elements, codes[0]).bag64 == digests(elements, codes[1]).bag64
        return ("layout", f"{said}; the same elements in some order, by bag64", []) if same else ("unknown", f"{said}; other elements", [])
    common = _common(elements, codes, shapes)
    return "unknown", f"{said}; {common or 'different numbers of elements'}", []


def _transposed(elements: Elements, codes: tuple[Array, Array], shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[int, ...]:
    """The order of axes that makes the suspect of the reference; empty if there is none."""
    from itertools import permutations

    if len(shapes[0]) != len(shapes[1]) or len(shapes[0]) > 5 or Counter(shapes[0]) != Counter(shapes[1]):
        return ()
    parts = elements.element.num_components
    left, right = codes[0].reshape(*shapes[0], parts), codes[1].reshape(*shapes[1], parts)
    for axes in permutations(range(len(shapes[0]))):
        target = left.transpose(*axes, len(axes))
        if target.shape == right.shape and all(np.array_equal(one, other) for one, other in zip(target, right, strict=True)):
            return axes
    return ()


def _common(elements: Elements, codes: tuple[Array, Array], shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    """Whether what both have, where one is longer along one axis, is equal at the beginning or at the end."""
    apart = [axis for axis, pair in enumerate(zip(*shapes, strict=False)) if pair[0] != pair[1]]
    if len(shapes[0]) != len(shapes[1]) or len(apart) != 1:
        return ""
    (axis,), parts = apart, elements.element.num_components
    length = min(shapes[0][axis], shapes[1][axis])
    arrays = [side.reshape(*shape, parts) for side, shape in zip(codes, shapes, strict=True)]
    for where, cut in (("first", slice(0, length)), ("last", slice(-length, None))):
        at = (slice(None),) * axis
        if length and np.array_equal(arrays[0][(*at, cut)], arrays[1][(*at, cut)]):
            return f"the {where} {length} of axis {axis} are equal in both"
    return f"they differ also in the {length} of axis {axis} that both have" if length else ""
