"""The oracle: ``spec.md`` read aloud, one element at a time, in Python integers. For tests; slow on purpose.

Shares no arithmetic with the twins: it widens small floats by their value (as a fraction), not by moving bits.
"""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import Any

import numpy.typing as npt

from opguard_core.fingerprint.constants import FOLD, LOW32, MASK64, POSITION, mix_element, mix_lane, mix_narrow
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES, FLOAT8, ElementType, SmallFloat, Widening

_SMALL_FLOATS = {"float16": SmallFloat(5, 10, 15, "ieee"), "bfloat16": SmallFloat(8, 7, 127, "ieee"), **FLOAT8}


def fingerprint(array: npt.NDArray[Any], dtype: str | None = None) -> Digests:
    """Digest ``array`` by the definition.

    Args:
        array: Any shape and strides. For dtypes that numpy lacks: unsigned integers of the item size, with ``dtype``.
        dtype: Torch's name; by default numpy's own name (which torch shares).

    Cost: about 10 us an element.
    """
    element = ELEMENT_TYPES[dtype or array.dtype.name]
    data = array.tobytes(order="C")  # logical, row-major
    if element.item_bytes != array.dtype.itemsize:
        raise ValueError(f"{element.name} has {element.item_bytes} bytes an element, the array {array.dtype.itemsize}")
    items = [data[k : k + element.item_bytes] for k in range(0, len(data), element.item_bytes)]
    padded = data + bytes(-len(data) % 8)
    lanes = [int.from_bytes(padded[k : k + 8], "little") for k in range(0, len(padded), 8)]
    size = element.component_bytes
    words = [widen(int.from_bytes(data[k : k + size], "little"), element) for k in range(0, len(data), size)]

    mix = sum(mix_lane((w + POSITION * (i + 1)) & MASK64) for i, w in enumerate(lanes))
    bag, value = (_narrow_sums if element.narrow else _wide_sums)(words)
    xor64 = 0
    for w in lanes:
        xor64 ^= w
    return Digests(
        mix64=mix_lane((mix + FOLD * (len(data) + 1)) & MASK64),
        value64=mix_lane((value + FOLD * (len(words) + 1)) & MASK64),
        bag64=mix_lane((bag + FOLD * (len(words) + 1)) & MASK64),
        xor32=(xor64 & LOW32) ^ (xor64 >> 32),
        trivial=len(items) <= 2 or len(set(items)) == 1,
        nbytes=len(data),
    )


def _wide_sums(words: list[int]) -> tuple[int, int]:
    """The sums of bag64 and value64 over 64-bit words."""
    bag = value = 0
    for i, e in enumerate(words):
        bag += mix_element(e)
        t = mix_element(e) ^ (POSITION * (i + 1) & MASK64)
        value += (t & LOW32) * (t >> 32)
    return bag, value


def _narrow_sums(words: list[int]) -> tuple[int, int]:
    """The same over 32-bit words: bag64 by element, value64 by pairs, the last one filled up with a zero."""
    bag = sum(a * b for a, b in map(mix_narrow, words))
    value = 0
    for k in range(0, len(words), 2):
        a0, b0 = mix_narrow(words[k])
        a1, b1 = mix_narrow(words[k + 1] if k + 1 < len(words) else 0)
        position = POSITION * (k // 2 + 1) & MASK64
        value += ((a0 + b1 + position) & LOW32) * ((a1 - b0 + (position >> 32)) & LOW32)
    return bag, value


def widen(code: int, element: ElementType) -> int:
    """The word of one component whose bits are ``code``."""
    how, bits = element.widening, 8 * element.component_bytes
    if how in (Widening.I8, Widening.I16, Widening.I32):
        return (code - (1 << bits) if code >> (bits - 1) else code) & MASK64
    if how in (Widening.U8, Widening.U16, Widening.U32, Widening.B64, Widening.F32):
        return code
    return _small_float(code, bits, _SMALL_FLOATS["float16" if how == Widening.F16 else element.name])


def _small_float(code: int, bits: int, form: SmallFloat) -> int:
    """The binary32 bits of a small float: same value, same sign, NaN payload kept at the top of the mantissa."""
    exponent_bits, mantissa_bits, bias, special = form
    negative = special != "e8m0" and bool(code >> (bits - 1))
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    sign = 0x80000000 if negative else 0
    top = (1 << exponent_bits) - 1
    if special == "fnuz" and code == 1 << (bits - 1):
        return 0x7F800001
    if special == "e8m0":
        if exponent == top:
            return 0x7F800001
        value = Fraction(2) ** (exponent - bias)
    elif special == "ieee" and exponent == top:
        return sign | 0x7F800000 | (mantissa << (23 - mantissa_bits))
    elif special == "fn" and exponent == top and mantissa == (1 << mantissa_bits) - 1:
        return sign | 0x7F800000 | (mantissa << (23 - mantissa_bits))
    elif exponent == 0:
        value = Fraction(mantissa) * Fraction(2) ** (1 - bias - mantissa_bits)
    else:
        value = (1 + Fraction(mantissa, 1 << mantissa_bits)) * Fraction(2) ** (exponent - bias)
    (packed,) = struct.unpack("<I", struct.pack("<f", float(value)))
    return sign | int(packed)
