"""What the bits of one component mean: numbers, order, names of bits. numpy only, for dtypes that numpy lacks, too.

A component is an element, or one of the two parts of a complex one. Arrays here are one-dimensional arrays of codes: unsigned
integers of the component's size.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from opguard_core.fingerprint.dtypes import ELEMENT_TYPES, FLOAT8, ElementType, Widening
from opguard_core.fingerprint.numpy_twin import widen

Array = npt.NDArray[Any]
CHUNK = 1 << 18
"""Components that are looked at at a time."""

_SIGNED = (Widening.I8, Widening.I16, Widening.I32)
_IEEE = {"float64": (11, 52), "float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}
_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


class Block(Protocol):
    """Bytes of one tensor: row-major, little-endian."""

    @property
    def dtype(self) -> str:
        """Torch's name."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths."""

    @property
    def data(self) -> Any:
        """The bytes, as anything with a buffer."""


@dataclass(frozen=True)
class Elements:
    """One dtype.

    Attributes:
        element: As the fingerprint knows it.
        kind: "float", "integer", "bool" or "bits" (no agreed meaning).
        signed: Whether a component has a sign.
        mantissa_bits: Of a float.
    """

    element: ElementType
    kind: str
    signed: bool
    mantissa_bits: int

    @property
    def bits(self) -> int:
        """Bits of a component."""
        return 8 * self.element.component_bytes

    @property
    def codes(self) -> np.dtype[Any]:
        """Type of codes."""
        return np.dtype(f"<u{self.element.component_bytes}")

    def read(self, block: Block) -> Array:
        """All components of a block, without a copy.

        Raises:
            ValueError: It has not as many bytes as its shape says.
        """
        wanted = int(np.prod(block.shape, dtype=np.int64)) * self.element.item_bytes
        data = np.frombuffer(block.data, dtype=np.uint8)
        if data.size != wanted:
            raise ValueError(f"{block.dtype} {list(block.shape)} has {data.size} bytes, not {wanted}")
        return data.view(self.codes)

    def values(self, codes: Array) -> npt.NDArray[np.float64]:
        """Numbers, exact but for integers beyond 2**53."""
        if self.kind != "float":
            integers = codes.view(f"<i{codes.dtype.itemsize}") if self.signed else codes
            return integers.astype(np.float64)
        if self.bits == 64:
            return codes.view("<f8")
        with np.errstate(invalid="ignore"):
            if self.bits == 32:
                return codes.view("<f4").astype(np.float64)
            return _values_of_codes(self.element)[codes]

    def order(self, codes: Array) -> npt.NDArray[np.int64]:
        """Numbers that grow by one from each representable value to the next; both zeros are 0."""
        if self.kind != "float" or self.element.name == "float8_e8m0fnu":
            return codes.view(f"<i{codes.dtype.itemsize}").astype(np.int64) if self.signed else codes.astype(np.int64)
        signed = codes.view(f"<i{codes.dtype.itemsize}").astype(np.int64)
        magnitude = signed & np.int64((1 << (self.bits - 1)) - 1)
        return np.where(signed < 0, -magnitude, magnitude)

    def distance(self, reference: Array, suspect: Array) -> npt.NDArray[np.uint64]:
        """Representable values from one to the other: ULP for floats, the absolute difference for integers."""
        if self.bits == 64 and not self.signed:
            return np.maximum(reference, suspect) - np.minimum(reference, suspect)
        left, right = self.order(reference), self.order(suspect)
        return np.maximum(left, right).view(np.uint64) - np.minimum(left, right).view(np.uint64)

    def bit_name(self, bit: int) -> str:
        """What a bit is: "sign", "exponent", "mantissa" or "bit"."""
        if self.signed and bit == self.bits - 1:
            return "sign"
        if self.kind != "float":
            return "bit"
        return "mantissa" if bit < self.mantissa_bits else "exponent"

    def text(self, codes: Array) -> str:
        """One element as a reader sees it."""
        if self.kind == "float":
            numbers = [repr(float(value)) for value in self.values(codes)]
        else:
            numbers = [str(int(code)) for code in (codes.view(f"<i{codes.dtype.itemsize}") if self.signed else codes)]
        return numbers[0] if len(numbers) == 1 else f"({', '.join(numbers)})"


@cache
def elements_of(dtype: str, item_bytes: int = 0) -> Elements:
    """The dtype of that name; one without an agreed meaning is read as bits.

    Raises:
        ValueError: It has no agreed meaning and an item size that no integer has.
    """
    from opguard_core.fingerprint.dtypes import opaque

    element = ELEMENT_TYPES.get(dtype)
    if element is None:
        return Elements(opaque(dtype, item_bytes), "bits", signed=False, mantissa_bits=0)
    part = _PARTS.get(dtype, dtype)
    if part in _IEEE:
        return Elements(element, "float", signed=True, mantissa_bits=_IEEE[part][1])
    if part in FLOAT8:
        return Elements(element, "float", signed=FLOAT8[part].special != "e8m0", mantissa_bits=FLOAT8[part].mantissa_bits)
    signed = element.widening in _SIGNED or dtype == "int64"
    return Elements(element, "bool" if dtype == "bool" else "integer", signed=signed, mantissa_bits=0)


def of_block(block: Block) -> Elements:
    """The dtype of a block."""
    number = int(np.prod(block.shape, dtype=np.int64))
    return elements_of(block.dtype, memoryview(block.data).nbytes // number if number else 1)


@cache
def _values_of_codes(element: ElementType) -> npt.NDArray[np.float64]:
    """The number of each code of an 8-bit or 16-bit float."""
    size = element.component_bytes
    codes = np.arange(1 << (8 * size), dtype=f"<u{size}")
    words = widen(codes.view(np.uint8), element).astype("<u4")
    with np.errstate(invalid="ignore"):
        return words.view("<f4").astype(np.float64)


def pairs(reference: Array, suspect: Array, parts: int) -> Iterator[tuple[int, Array, Array]]:
    """Both blocks in chunks of whole elements.

    Args:
        reference: Components.
        suspect: Components, as many.
        parts: Components of an element.

    Yields:
        Number of the first element, and both chunks as elements x components.
    """
    step = CHUNK // parts * parts
    for start in range(0, reference.size, step):
        yield start // parts, reference[start : start + step].reshape(-1, parts), suspect[start : start + step].reshape(-1, parts)


assert sys.byteorder == "little", "blocks are little-endian and are read without a copy"
