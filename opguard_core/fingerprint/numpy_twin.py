"""The chunked numpy twin: what ``cpu.py`` uses where there is no compiler. Same bits, a few times slower.

Temporaries are a few hundred KiB whatever the array's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from opguard_core.fingerprint.constants import FEED, LOW32, MASK64, POSITION, SPREAD, finish
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ElementType, Widening, float8_table
from opguard_core.fingerprint.layout import merge_dimensions

Words = npt.NDArray[np.uint64]
CHUNK_ELEMENTS = 8192  # even, and a multiple of 8: chunks start on lane boundaries and on the flip pattern
_HALF = np.uint64(32)
_LOW = np.uint64(LOW32)
_SPREAD = np.uint64(SPREAD)
_FEED = np.uint64(FEED)
_POSITIONS: Words = np.arange(1, 2 * CHUNK_ELEMENTS + 1, dtype=np.uint64) * np.uint64(POSITION)
_READ_AS = {1: "|u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "<c16"}
_SIGNED = {Widening.I8: "<i1", Widening.I16: "<i2", Widening.I32: "<i4"}
_UNSIGNED = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}


def fingerprint(
    pointer: int, element: ElementType, shape: tuple[int, ...], strides_elements: tuple[int, ...], flip: tuple[int, int] = (0, 0)
) -> Digests:
    """Digest strided host memory; arguments as for ``cpu.fingerprint``.

    Cost: about 10 ns a float32 element; a few hundred KiB of temporaries.
    """
    numel = 1
    for length in shape:
        numel *= length
    mix = value = bag = xor64 = 0
    trivial = True
    first: npt.NDArray[np.uint8] | None = None
    done = 0
    flips = np.array(flip, dtype="<u8").view(np.uint8)
    chunks = _logical_chunks(_Memory(pointer, element, shape, strides_elements), numel) if numel else iter(())
    for raw in chunks:
        if flip != (0, 0):
            raw = raw ^ np.resize(flips, raw.size)
        if first is None:
            first = raw[: element.item_bytes].copy()
        trivial = trivial and bool((raw.reshape(-1, element.item_bytes) == first).all())
        lanes = _lanes(raw)
        hashed = _mix(lanes + _positions(done * element.item_bytes // 8, lanes.size))
        mix += int(hashed.sum(dtype=np.uint64))
        xor64 ^= int(np.bitwise_xor.reduce(lanes))
        hashed = _mix(widen(raw, element))
        bag += int(hashed.sum(dtype=np.uint64))
        hashed ^= _positions(done * element.num_components, hashed.size)
        low = hashed & _LOW
        hashed >>= _HALF
        hashed *= low
        value += int(hashed.sum(dtype=np.uint64))
        done += raw.size // element.item_bytes
    nbytes, components = numel * element.item_bytes, numel * element.num_components
    return Digests(
        finish(mix, nbytes),
        finish(value, components),
        finish(bag, components),
        (xor64 ^ (xor64 >> 32)) & LOW32,
        numel <= 2 or trivial,
        nbytes,
    )


class _Memory:
    """Foreign memory for ``np.asarray``: nothing is copied and numpy never writes it."""

    def __init__(self, pointer: int, element: ElementType, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        lengths, steps = merge_dimensions(shape, strides) if 0 not in shape else ((0,), (1,))
        self.__array_interface__ = {
            "version": 3,
            "data": (pointer, True),
            "typestr": _READ_AS[element.item_bytes],
            "shape": lengths,
            "strides": tuple(step * element.item_bytes for step in steps),
        }


def _logical_chunks(memory: Any, numel: int) -> Iterator[npt.NDArray[np.uint8]]:
    array = np.asarray(memory)
    dense = array.ndim == 1 and array.strides == (array.itemsize,)
    for start in range(0, numel, CHUNK_ELEMENTS):
        stop = start + CHUNK_ELEMENTS
        part = array[start:stop] if dense else array.flat[start:stop]
        yield part.view(np.uint8)


def _lanes(raw: npt.NDArray[np.uint8]) -> Words:
    if raw.size % 8 == 0:
        return raw.view("<u8")
    padded = np.zeros(-(-raw.size // 8) * 8, dtype=np.uint8)
    padded[: raw.size] = raw
    return padded.view("<u8")


def _positions(first: int, count: int) -> Words:
    return _POSITIONS[:count] + np.uint64(POSITION * first & MASK64)


def _mix(x: Words) -> Words:
    """``M`` of every word."""
    x = x ^ (x >> _HALF)
    x *= _SPREAD
    x ^= x >> _HALF
    x *= _FEED
    x ^= x >> _HALF
    return x


def widen(raw: npt.NDArray[np.uint8], element: ElementType) -> Words:
    """One 64-bit word per component, by ``spec.md`` section 3."""
    how = element.widening
    if how in _SIGNED:
        return raw.view(_SIGNED[how]).astype(np.int64).view(np.uint64)
    codes = raw.view(_UNSIGNED[element.component_bytes])
    if how == Widening.TABLE8:
        return np.array(float8_table(element.name), dtype=np.uint64).take(codes)
    if how == Widening.F16:
        return _float16_table().take(codes)
    words: Words = codes.astype(np.uint64)
    if how == Widening.BF16:
        words <<= np.uint64(16)
    return words


_float16: Words | None = None


def _float16_table() -> Words:
    """All 65536 binary16 codes, widened by bit arithmetic: no floating-point unit, no quieted NaN."""
    global _float16
    if _float16 is None:
        codes = np.arange(1 << 16, dtype=np.uint64)
        sign, magnitude = (codes >> np.uint64(15)) << np.uint64(31), codes & np.uint64(0x7FFF)
        words = (magnitude << np.uint64(13)) + np.uint64(112 << 23)
        special = magnitude >= 0x7C00
        words[special] = (magnitude[special] << np.uint64(13)) | np.uint64(0x7F800000)
        for code in range(0x400):  # subnormals: code * 2**-24, normalised
            shift = 11 - code.bit_length()
            bits = 0 if code == 0 else ((113 - shift) << 23) | (((code << shift) & 0x3FF) << 13)
            words[magnitude == code] = bits
        _float16 = sign | words
    return _float16
