"""Which dtypes there are, by torch's names, and how each widens (``spec.md`` section 3).

Names not listed have no agreed meaning per element (packed 4-bit floats, ``bits8``, future types): they are read as
unsigned integers of their item size, see ``opaque``.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import NamedTuple


class Widening(IntEnum):
    """How one component becomes a word; the numbers are the ones in ``dense.h``."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    B64 = 6  # int64, uint64, float64: the bits
    F32 = 7  # the bits; from here on narrow words
    BF16 = 8
    F16 = 9
    TABLE8 = 10  # 8-bit floats: a table of 256 float32 bit patterns


_NARROW = frozenset({Widening.F32, Widening.BF16, Widening.F16, Widening.TABLE8})


class ElementType(NamedTuple):
    """One dtype: ``item_bytes`` per element, made of ``num_components`` (2 for complex) that widen alike."""

    name: str
    item_bytes: int
    num_components: int
    widening: Widening

    @property
    def narrow(self) -> bool:
        """Whether components are floats of at most 32 bits, which widen to float32; all others widen to 64 bits."""
        return self.widening in _NARROW

    @property
    def component_bytes(self) -> int:
        """Bytes of one component."""
        return self.item_bytes // self.num_components


class SmallFloat(NamedTuple):
    """A float that float32 contains. ``special``: "ieee" (inf and NaN), "fn" (all-ones NaN only), "fnuz" (0x80 is the NaN), "e8m0"."""

    exponent_bits: int
    mantissa_bits: int
    bias: int
    special: str


FLOAT8 = {
    "float8_e5m2": SmallFloat(5, 2, 15, "ieee"),
    "float8_e4m3fn": SmallFloat(4, 3, 7, "fn"),
    "float8_e5m2fnuz": SmallFloat(5, 2, 16, "fnuz"),
    "float8_e4m3fnuz": SmallFloat(4, 3, 8, "fnuz"),
    "float8_e8m0fnu": SmallFloat(8, 0, 127, "e8m0"),
}

_KNOWN = [
    ElementType("bool", 1, 1, Widening.U8),
    ElementType("uint8", 1, 1, Widening.U8),
    ElementType("int8", 1, 1, Widening.I8),
    ElementType("uint16", 2, 1, Widening.U16),
    ElementType("int16", 2, 1, Widening.I16),
    ElementType("uint32", 4, 1, Widening.U32),
    ElementType("int32", 4, 1, Widening.I32),
    ElementType("uint64", 8, 1, Widening.B64),
    ElementType("int64", 8, 1, Widening.B64),
    ElementType("float64", 8, 1, Widening.B64),
    ElementType("float32", 4, 1, Widening.F32),
    ElementType("bfloat16", 2, 1, Widening.BF16),
    ElementType("float16", 2, 1, Widening.F16),
    ElementType("complex32", 4, 2, Widening.F16),
    ElementType("complex64", 8, 2, Widening.F32),
    ElementType("complex128", 16, 2, Widening.B64),
    *(ElementType(name, 1, 1, Widening.TABLE8) for name in FLOAT8),
]
ELEMENT_TYPES = {known.name: known for known in _KNOWN}
_FNUZ_NAN = 0x7F800001  # Source: what c10's conversions give for a NaN code without payload
_OPAQUE = {1: Widening.U8, 2: Widening.U16, 4: Widening.U32, 8: Widening.B64}


def opaque(name: str, item_bytes: int) -> ElementType:
    """A dtype without an agreed meaning, read as unsigned integers of its item size.

    Raises:
        ValueError: No such integer exists for ``item_bytes`` (1, 2, 4 and 8 do).
    """
    if item_bytes not in _OPAQUE:
        raise ValueError(f"dtype {name}: elements of {item_bytes} bytes have no rule in spec.md")
    return ElementType(name, item_bytes, 1, _OPAQUE[item_bytes])


@cache
def float8_table(name: str) -> tuple[int, ...]:
    """The float32 bits of each of the 256 codes of an 8-bit float, by the rules of ``spec.md`` section 3."""
    return tuple(_widen_float8(code, FLOAT8[name]) for code in range(256))


def _widen_float8(code: int, form: SmallFloat) -> int:
    if form.special == "e8m0":  # an unsigned power of two: float32's own exponent field, but for 2^-127 and NaN
        return {0: 0x00400000, 255: _FNUZ_NAN}.get(code, code << 23)
    sign = (code >> 7) << 31
    exponent = (code >> form.mantissa_bits) & ((1 << form.exponent_bits) - 1)
    mantissa = code & ((1 << form.mantissa_bits) - 1)
    all_ones = exponent == (1 << form.exponent_bits) - 1
    if form.special == "fnuz" and code == 0x80:
        return _FNUZ_NAN
    if (form.special == "ieee" and all_ones) or (form.special == "fn" and code & 0x7F == 0x7F):
        return sign | 0x7F800000 | (mantissa << (23 - form.mantissa_bits))
    if exponent == 0:
        if mantissa == 0:
            return sign
        shift = form.mantissa_bits + 1 - mantissa.bit_length()  # normalise the subnormal; float32 can hold all of them
        mantissa = (mantissa << shift) & ((1 << form.mantissa_bits) - 1)
        exponent = 1 - shift
    return sign | ((exponent - form.bias + 127) << 23) | (mantissa << (23 - form.mantissa_bits))
