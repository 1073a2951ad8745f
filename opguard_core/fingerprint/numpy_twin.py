"""The chunked numpy twin: what ``cpu.py`` uses where there is no compiler. Same bits, about ten times slower.

Temporaries are a few hundred KiB whatever the array's size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from opguard_core.fingerprint.constants import FEED, LANE_FOLD, LOW32, MASK64, OFFSET, POSITION, SPREAD, finish
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ElementType, Widening, float8_table
from opguard_core.fingerprint.layout import merge_dimensions

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
CHUNK_ELEMENTS = 8192  # a multiple of 16: every chunk starts on a lane and at the start of the flip pattern
_HALF = np.uint64(32)
_LOW = np.uint64(LOW32)
_SPREAD = np.uint64(SPREAD)
_OFFSET = np.uint64(OFFSET)
_FEED = np.uint64(FEED)
_LANE_FOLD = np.uint64(LANE_FOLD)
_POSITIONS: Words = np.arange(1, 2 * CHUNK_ELEMENTS + 1, dtype=np.uint64) * np.uint64(POSITION)
_UNSIGNED = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "<c16"}
_SIGNED = {Widening.I8: "<i1", Widening.I16: "<i2", Widening.I32: "<i4"}


def fingerprint(
    pointer: int, element: ElementType, shape: tuple[int, ...], strides_elements: tuple[int, ...], flip: tuple[int, int] = (0, 0)
) -> Digests:
    """Digest strided host memory; arguments as for ``cpu.Reader`` and ``Reader.read``.

    Cost: about 6 ns a float32 element; a few hundred KiB of temporaries.
    """
    numel = 1
    for length in shape:
        numel *= length
    mix = value = bag = xor64 = done = 0
    first = b""
    all_equal = True
    flips = np.resize(np.array(flip, dtype="<u8").view(np.uint8), CHUNK_ELEMENTS * element.item_bytes if any(flip) else 0)
    for memory in _logical_chunks(_Memory(pointer, element, shape, strides_elements), numel) if numel else ():
        raw = memory ^ flips[: memory.size] if any(flip) else memory
        first = first or raw[: element.item_bytes].tobytes()
        all_equal = all_equal and _all_equal(raw, first)
        lanes = _lanes(raw)
        mix += _sum(mix_lanes(lanes + _positions(done * element.item_bytes // 8, lanes.size)))
        xor64 ^= int(np.bitwise_xor.reduce(lanes))
        hashed = _hashed(raw, element)
        bag += _sum(hashed)
        hashed ^= _positions(done * element.num_components, hashed.size)
        low = hashed & _LOW
        hashed >>= _HALF
        hashed *= low
        value += _sum(hashed)
        done += raw.size // element.item_bytes
    nbytes, components = numel * element.item_bytes, numel * element.num_components
    return Digests(
        finish(mix, nbytes),
        finish(value, components),
        finish(bag, components),
        (xor64 ^ (xor64 >> 32)) & LOW32,
        numel <= 2 or all_equal,
        nbytes,
    )


class _Memory:
    """Foreign memory for ``np.asarray``: nothing is copied and numpy never writes it."""

    def __init__(self, pointer: int, element: ElementType, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        lengths, steps = merge_dimensions(shape, strides)
        self.__array_interface__ = {
            "version": 3,
            "data": (pointer, True),
            "typestr": _UNSIGNED[element.item_bytes],
            "shape": lengths,
            "strides": tuple(step * element.item_bytes for step in steps),
        }


def _logical_chunks(memory: Any, numel: int) -> Iterator[Bytes]:
    array = np.asarray(memory)
    dense = array.ndim == 1 and array.strides == (array.itemsize,)
    for start in range(0, numel, CHUNK_ELEMENTS):
        stop = start + CHUNK_ELEMENTS
        part = array[start:stop] if dense else array.flat[start:stop]
        yield part.view(np.uint8)


def _all_equal(raw: Bytes, first: bytes) -> bool:
    """Whether every element of the chunk has the bytes ``first``; complex128 is compared as pairs of words."""
    items = raw.view(_UNSIGNED[min(len(first), 8)]).reshape(-1, max(len(first) // 8, 1))
    return bool((items == np.frombuffer(first, dtype=items.dtype)).all())


def _lanes(raw: Bytes) -> Words:
    if raw.size % 8 == 0:
        return raw.view("<u8")
    padded = np.zeros(-(-raw.size // 8) * 8, dtype=np.uint8)
    padded[: raw.size] = raw
    return padded.view("<u8")


def _positions(first: int, count: int) -> Words:
    return _POSITIONS[:count] + np.uint64(POSITION * first & MASK64)


def _sum(words: Words) -> int:
    return int(words.sum(dtype=np.uint64))


def mix_lanes(x: Words) -> Words:
    """``M`` of every word, as a new array."""
    x = x ^ (x >> _LANE_FOLD)
    x *= _SPREAD
    return _spread(x)


def mix_elements(x: Words) -> Words:
    """``G`` of every word, as a new array."""
    x = x ^ (x >> _HALF)
    x *= _SPREAD
    x += _OFFSET
    return _spread(x)


def _spread(x: Words) -> Words:
    """What ``M`` and ``G`` share, in place."""
    x ^= x >> _HALF
    x *= _FEED
    x ^= x >> _HALF
    return x


def _hashed(raw: Bytes, element: ElementType) -> Words:
    """``G`` of every component, widened by ``spec.md`` section 3, as a new array."""
    if element.component_bytes <= 2:
        codes = raw.view(_UNSIGNED[element.component_bytes])
        return _hashed_codes(element).take(codes)
    return mix_elements(widen(raw, element))


@cache
def _hashed_codes(element: ElementType) -> Words:
    codes = np.arange(1 << (8 * element.component_bytes), dtype=_UNSIGNED[element.component_bytes])
    return mix_elements(widen(codes.view(np.uint8), element))


def widen(raw: Bytes, element: ElementType) -> Words:
    """One 64-bit word per component, by ``spec.md`` section 3."""
    how = element.widening
    if how in _SIGNED:
        return raw.view(_SIGNED[how]).astype(np.int64).view(np.uint64)
    words = raw.view(_UNSIGNED[element.component_bytes]).astype(np.uint64)
    if how == Widening.TABLE8:
        return np.array(float8_table(element.name), dtype=np.uint64).take(words.view(np.int64))
    if how == Widening.F16:
        return widen_float16(words)
    if how == Widening.BF16:
        words <<= np.uint64(16)
    return words


def widen_float16(codes: Words) -> Words:
    """Binary16 codes to binary32 bits, both as words, by moving bits: no floating-point unit, no quieted NaN."""
    sign, magnitude = (codes >> np.uint64(15)) << np.uint64(31), codes & np.uint64(0x7FFF)
    words = (magnitude << np.uint64(13)) + np.uint64(112 << 23)
    words[magnitude >= 0x7C00] |= np.uint64(0x7F800000)
    for small in np.flatnonzero(magnitude < 0x400):  # subnormals: code * 2**-24, normalised
        code = int(magnitude[small])
        shift = 11 - code.bit_length()
        words[small] = ((113 - shift) << 23) | ((code << shift) & 0x3FF) << 13 if code else 0
    return sign | words
