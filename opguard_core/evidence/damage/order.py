"""Is one block a permutation of the other, and which: rows, columns, heads, a transpose, another factorisation of the same memory.

First the elements are compared without their order (by digest, then by sorting where that is cheap); only then an order is looked
for, and what is found is checked byte for byte. What it cannot name: an order without structure.
"""

from __future__ import annotations

import ctypes
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from opguard_core.evidence.damage.elements import CHUNK, Array, Elements
from opguard_core.evidence.damage.slices import equal_slices, slice_digests
from opguard_core.fingerprint import numpy_twin
from opguard_core.fingerprint.digest import Digests

MAX_AXIS = 1 << 22
MAX_SORTED = 1 << 24
MAX_WORK = 1 << 30
_MAX_VIEWS = 20_000
_SAMPLES = 64
_SHOWN = 8
Index = npt.NDArray[np.int64]


def digests(elements: Elements, codes: Array) -> Digests:
    """Fingerprint of components that lie one behind the other, by the numpy twin."""
    if not codes.size:
        return numpy_twin.fingerprint(0, elements.element, (0,), (1,))
    held = np.ascontiguousarray(codes)
    pointer = ctypes.cast(held.ctypes.data, ctypes.c_void_p).value or 0
    return numpy_twin.fingerprint(pointer, elements.element, (held.size // elements.element.num_components,), (1,))


def same_elements(elements: Elements, reference: Array, suspect: Array) -> tuple[bool, str]:
    """Whether both hold the same elements in some order, and how that is known."""
    if reference.size != suspect.size or digests(elements, reference).bag64 != digests(elements, suspect).bag64:
        return False, "by bag64"
    parts = elements.element.num_components
    if reference.size > MAX_SORTED or parts > 1:
        return True, "by bag64, evidence of 64 bits"
    return bool(np.array_equal(np.sort(reference), np.sort(suspect))), "sorted, equal"


def find_order(elements: Elements, reference: Array, suspect: Array, shape: tuple[int, ...]) -> dict[str, Any] | None:
    """The order in which the suspect has the reference's elements.

    Args:
        elements: The dtype.
        reference: All components, row-major.
        suspect: As many, not equal.
        shape: Lengths.

    Returns:
        None if it is no permutation; else ``kind`` ("axis", "transpose", "view" or "unknown"), ``known`` (how the elements are known to
        be the same), ``text``, and what describes the order.
    """
    same, known = same_elements(elements, reference, suspect)
    if not same:
        return None
    whole = (*shape, elements.element.num_components)
    found = None
    if reference.size * max(1, len(shape)) <= MAX_WORK:
        simple = [order for axis in range(len(shape)) if 1 < shape[axis] <= MAX_AXIS and (order := _along(reference, suspect, whole, axis))]
        plain = [order for order in simple if order["how"] != "other"]
        found = plain[0] if plain else None
        found = found or _exchanged(reference, suspect, shape, whole) or (simple[0] if simple else None)
    if found is None:
        found = {"kind": "unknown", "text": "the same elements in an order without a structure that was looked for"}
    return {**found, "known": known}


def _along(reference: Array, suspect: Array, shape: tuple[int, ...], axis: int) -> dict[str, Any] | None:
    """Slices of one axis in another order."""
    left, right = slice_digests(reference, shape, axis), slice_digests(suspect, shape, axis)
    if (left == right).all() or not np.array_equal(np.sort(left), np.sort(right)):
        return None
    mapping = _mapping(left, right)
    if not equal_slices(reference, suspect, shape, axis, mapping):
        return None
    moved = np.flatnonzero(mapping != np.arange(mapping.size))
    how, text = _named(mapping, moved)
    name = {0: "rows", 1: "columns"}[axis] if len(shape) == 3 else f"indices of axis {axis}"
    return {
        "kind": "axis",
        "axis": axis,
        "how": how,
        "moved": int(moved.size),
        "from": [[int(index), int(mapping[index])] for index in moved[:_SHOWN]],
        "text": f"{name} {text}",
    }


def _mapping(left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64]) -> Index:
    """For each index of the suspect one of the reference with the same digest, itself where that fits."""
    mapping = np.arange(left.size)
    moved = np.flatnonzero(left != right)
    mapping[moved[np.argsort(right[moved], kind="stable")]] = moved[np.argsort(left[moved], kind="stable")]
    return mapping


def _named(mapping: Index, moved: Index) -> tuple[str, str]:
    """The structure of a permutation of one axis, in words."""
    length = mapping.size
    if moved.size == 2:
        return "swap", f"{int(moved[0])} and {int(moved[1])} are swapped"
    at = np.arange(length)
    shift = int(mapping[0])
    if (mapping == (at + shift) % length).all():
        return "roll", f"are rolled by {length - shift if shift > length // 2 else -shift}"
    if (mapping == length - 1 - at).all():
        return "reverse", "are in reverse order"
    block = next((size for size in _divisors(length)[-2:0:-1] if _is_blockwise(mapping, size)), 0)
    if block:
        inner, inside = _named(mapping[::block] // block, np.flatnonzero(mapping[::block] // block != np.arange(length // block)))
        if inner != "other":
            return "blocks", f"in blocks of {block} (heads, for example): blocks {inside}"
        return "blocks", f"in blocks of {block} (heads, for example) are in another order"
    return "other", f"are in another order, {moved.size} of {length} moved"


def _is_blockwise(mapping: Index, size: int) -> bool:
    table = mapping.reshape(-1, size)
    return bool((table[:, 0] % size == 0).all() and (table == table[:, :1] + np.arange(size)).all())


def _exchanged(reference: Array, suspect: Array, shape: tuple[int, ...], whole: tuple[int, ...]) -> dict[str, Any] | None:
    """Axes exchanged, or two factors of a length: the memory seen as ``a, p, q, b`` and written as ``a, q, p, b``."""
    parts = whole[-1]
    left, right = reference.reshape(-1, parts), suspect.reshape(-1, parts)
    for axes in _axis_orders(len(shape)):
        target = tuple(shape[axis] for axis in axes)
        order = (*axes, len(shape))
        if _equal(reference.reshape(whole).transpose(order), suspect.reshape(*target, parts)):
            names = ", ".join(map(str, axes))
            return {
                "kind": "transpose",
                "how": "axes",
                "axes": list(axes),
                "text": f"the axes in the order ({names}), written without moving",
            }
    number = left.shape[0]
    samples = np.unique(np.linspace(0, number - 1, min(number, _SAMPLES)).astype(np.int64))
    divisors = _divisors(number)
    tried = 0
    for inner in divisors[::-1]:
        for p in _divisors(number // inner)[1:]:
            for q in _divisors(number // inner // p)[1:]:
                tried += 1
                if tried > _MAX_VIEWS:
                    return None
                block = p * q * inner
                within = samples % block
                row, rest = within // inner, within % inner
                source = samples - within + (row % p * q + row // p) * inner + rest
                if (left[source] == right[samples]).all() and _equal(
                    left.reshape(-1, p, q, inner, parts).swapaxes(1, 2), right.reshape(-1, q, p, inner, parts)
                ):
                    outer = number // block
                    text = f"seen as {outer} x {p} x {q} x {inner}, the two in the middle are exchanged"
                    return {"kind": "view", "how": "factors", "view": [outer, p, q, inner], "text": text}
    return None


def _equal(left: Array, right: Array) -> bool:
    """Compare two views in pieces, the first few elements first."""
    if left.shape != right.shape:
        return False
    rows = max(1, CHUNK // max(1, left[0].size)) if left.shape[0] else 1
    return all(np.array_equal(left[start : start + rows], right[start : start + rows]) for start in range(0, left.shape[0], rows))


def _axis_orders(number: int) -> list[tuple[int, ...]]:
    """Orders of axes to try: all of up to four, else all exchanges of two."""
    straight = tuple(range(number))
    if number <= 4:
        return [axes for axes in permutations(straight) if axes != straight]
    found = []
    for first in range(number):
        for second in range(first + 1, number):
            axes = list(straight)
            axes[first], axes[second] = second, first
            found.append(tuple(axes))
    return found


def _divisors(number: int) -> list[int]:
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})
