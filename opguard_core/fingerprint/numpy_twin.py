"""The chunked numpy twin: what ``cpu.py`` uses where there is no compiler. Same bits, ten times slower.

Works in buffers that each thread keeps (2 MiB): fresh ones of this size would be mapped and unmapped by the allocator again and
again, which costs more than the arithmetic.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from opguard_core.fingerprint.constants import FEED, LANE_FOLD, LOW32, MASK64, OFFSET, POSITION, SCATTER, SPREAD, finish
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ElementType, Widening, float8_table
from opguard_core.fingerprint.layout import merge_dimensions

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
CHUNK_ELEMENTS = 32768  # a multiple of 16: every chunk starts on a lane, on a pair and at the start of the flip pattern
_CAPACITY = 2 * CHUNK_ELEMENTS  # complex elements have two components, complex128 two lanes
_HALF = np.uint64(32)
_LOW = np.uint64(LOW32)
_SPREAD = np.uint64(SPREAD)
_OFFSET = np.uint64(OFFSET)
_FEED = np.uint64(FEED)
_SCATTER = np.uint64(SCATTER)
_LANE_FOLD = np.uint64(LANE_FOLD)
_POSITIONS: Words = np.arange(1, _CAPACITY + 1, dtype=np.uint64) * np.uint64(POSITION)
_UNSIGNED = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "<c16"}
_SIGNED = {Widening.I8: "<i1", Widening.I16: "<i2", Widening.I32: "<i4"}


class _Room(threading.local):
    """Buffers of one thread: words, two for intermediate results, positions."""

    def __init__(self) -> None:
        self.words: Words = np.empty(_CAPACITY, dtype=np.uint64)
        self.left: Words = np.empty(_CAPACITY, dtype=np.uint64)
        self.right: Words = np.empty(_CAPACITY, dtype=np.uint64)
        self.places: Words = np.empty(_CAPACITY, dtype=np.uint64)


_room = _Room()


def fingerprint(
    pointer: int, element: ElementType, shape: tuple[int, ...], strides_elements: tuple[int, ...], flip: tuple[int, int] = (0, 0)
) -> Digests:
    """Digest strided host memory; arguments as for ``cpu.Reader`` and ``Reader.read``.

    Cost: about 6 ns a float32 element; 2 MiB of buffers a thread.
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
        placed = np.add(lanes, _places(done * element.item_bytes // 8, lanes.size), out=_room.words[: lanes.size])
        mix += _sum(mix_lanes(placed, placed, _room.left[: lanes.size]))
        xor64 ^= int(np.bitwise_xor.reduce(lanes))
        bag_part, value_part = (_narrow_sums if element.narrow else _wide_sums)(raw, element, done * element.num_components)
        bag += bag_part
        value += value_part
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


def _places(first: int, count: int) -> Words:
    """``C * (i + 1)`` for ``count`` places from ``first`` on, in the thread's buffer."""
    return np.add(_POSITIONS[:count], np.uint64(POSITION * first & MASK64), out=_room.places[:count])


def _sum(words: Words) -> int:
    return int(words.sum(dtype=np.uint64))


def mix_lanes(x: Words, out: Words | None = None, spare: Words | None = None) -> Words:
    """``M`` of every word, into ``out`` (which may be ``x``) by way of ``spare``; both are made if not given."""
    spare = np.right_shift(x, _LANE_FOLD, out=spare)
    out = np.bitwise_xor(x, spare, out=out)
    out *= _SPREAD
    return _spread(out, spare)


def mix_elements(x: Words, out: Words | None = None, spare: Words | None = None) -> Words:
    """``G`` of every word; arguments as for ``mix_lanes``."""
    spare = np.right_shift(x, _HALF, out=spare)
    out = np.bitwise_xor(x, spare, out=out)
    out *= _SPREAD
    out += _OFFSET
    return _spread(out, spare)


def _spread(x: Words, spare: Words) -> Words:
    """What ``M`` and ``G`` share, in place."""
    x ^= np.right_shift(x, _HALF, out=spare)
    x *= _FEED
    x ^= np.right_shift(x, _HALF, out=spare)
    return x


def mix_narrow(x: Words, out: Words | None = None, spare: Words | None = None) -> Words:
    """``a`` of every word in the low half, ``b`` in the high half; arguments as for ``mix_lanes``."""
    out = np.multiply(x, _SCATTER, out=out)
    out += _OFFSET
    out ^= np.left_shift(out, _HALF, out=spare)
    return out


def wide_terms(hashed: Words, places: Words, out: Words | None = None) -> Words:
    """The terms of value64 of wide words, mixed already, at ``places`` (overwritten)."""
    places ^= hashed
    out = np.bitwise_and(places, _LOW, out=out)
    places >>= _HALF
    out *= places
    return out


def narrow_terms(mixed: Words, places: Words, left: Words | None = None, right: Words | None = None) -> Words:
    """The terms of value64 of narrow words, mixed already and even in number: one for each pair, at ``places`` (overwritten)."""
    even, odd = mixed[0::2], mixed[1::2]
    left = np.right_shift(odd, _HALF, out=left)
    left += even
    left += places
    left &= _LOW
    right = np.right_shift(even, _HALF, out=right)
    np.subtract(odd, right, out=right)
    places >>= _HALF
    right += places
    right &= _LOW
    right *= left
    return right


def _wide_sums(raw: Bytes, element: ElementType, first: int) -> tuple[int, int]:
    hashed = _mixed(raw, element)
    bag = _sum(hashed)
    return bag, _sum(wide_terms(hashed, _places(first, hashed.size), _room.left[: hashed.size]))


def _narrow_sums(raw: Bytes, element: ElementType, first: int) -> tuple[int, int]:
    mixed = _mixed(raw, element)
    count = mixed.size
    terms = np.bitwise_and(mixed, _LOW, out=_room.left[:count])
    terms *= np.right_shift(mixed, _HALF, out=_room.right[:count])
    bag = _sum(terms)
    if count % 2:  # only the last chunk can be odd, and then it is not full
        mixed = _room.words[: count + 1]
        mixed[count] = mix_narrow(np.zeros(1, dtype=np.uint64))[0]
    pairs = mixed.size // 2
    return bag, _sum(narrow_terms(mixed, _places(first // 2, pairs), _room.left[:pairs], _room.right[:pairs]))


def _mixed(raw: Bytes, element: ElementType) -> Words:
    """Every component widened by ``spec.md`` section 3 and mixed as its kind of word, in the thread's buffer."""
    out = _room.words[: raw.size // element.component_bytes]
    if element.component_bytes <= 2 and element.widening != Widening.BF16:  # whose widening is a single shift
        codes = raw.view(_UNSIGNED[element.component_bytes])
        return np.take(_mixed_codes(element), codes, out=out, mode="wrap")  # any mode but "raise" writes straight to `out`
    words = widen(raw, element, out)
    return (mix_narrow if element.narrow else mix_elements)(words, words, _room.left[: words.size])


@cache
def _mixed_codes(element: ElementType) -> Words:
    codes = np.arange(1 << (8 * element.component_bytes), dtype=_UNSIGNED[element.component_bytes])
    words = widen(codes.view(np.uint8), element)
    return (mix_narrow if element.narrow else mix_elements)(words)


def widen(raw: Bytes, element: ElementType, out: Words | None = None) -> Words:
    """One word per component, by ``spec.md`` section 3, into ``out`` if given."""
    how = element.widening
    if out is None:
        out = np.empty(raw.size // element.component_bytes, dtype=np.uint64)
    if how in _SIGNED:
        np.copyto(out.view(np.int64), raw.view(_SIGNED[how]))
        return out
    np.copyto(out, raw.view(_UNSIGNED[element.component_bytes]))
    if how == Widening.TABLE8:
        return np.array(float8_table(element.name), dtype=np.uint64).take(out.view(np.int64))
    if how == Widening.F16:
        return widen_float16(out)
    if how == Widening.BF16:
        out <<= np.uint64(16)
    return out


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
