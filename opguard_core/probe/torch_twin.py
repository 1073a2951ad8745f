"""The fingerprint in torch operations: any device that has 64-bit integers, where no faster twin fits.

Sits below ``tensor.py``. Same bits as the CPU twins; slower, and it launches some dozen small kernels per chunk. The operations
are hidden from dispatch modes and autograd by the caller (``tensor.py``), draw no random numbers and write to no tensor but
their own temporaries (a few dozen MiB at most, whatever the tensor's size).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch

from opguard_core.fingerprint import constants, numpy_twin
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ElementType, Widening, float8_table
from opguard_core.fingerprint.layout import merge_dimensions

_tolist = torch.Tensor.tolist  # as it is before capture notices its callers
CHUNK_ELEMENTS = 1 << 20  # a multiple of 16: every chunk starts on a lane and at the start of the flip pattern
_CODES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(t: torch.Tensor, element: ElementType, flip: tuple[int, int] = (0, 0)) -> Digests:
    """Digest a dense strided tensor.

    Args:
        t: Any device, any strides, at least its extent in memory; its conjugate and negative bits are not looked at.
        element: What its elements are.
        flip: XORed into every 16 logical bytes, as two words: those bits, made explicit.

    Cost: about 60 launches and 100 bytes of traffic an element; one copy of 5 words to the host at the end, which waits for
    the device: not for CUDA tensors of a training, whose words `backends.DeviceTwin` sends after them.
    """
    words = _tolist(sums(t, element, flip)) if t.numel() else (0, 0, 0, 0, 0)
    return finished(words, t.numel(), element)


def finished(words: Sequence[int], numel: int, element: ElementType) -> Digests:
    """The digests that follow from the sums of `sums`, once they are on the host.

    Args:
        words: Five, signed or not.
        numel: Elements of the tensor.
        element: What they are.
    """
    mix, value, bag, xor64, differs = (int(word) & constants.MASK64 for word in words)
    nbytes, components = numel * element.item_bytes, numel * element.num_components
    return Digests(
        constants.finish(mix, nbytes),
        constants.finish(value, components),
        constants.finish(bag, components),
        (xor64 ^ (xor64 >> 32)) & constants.LOW32,
        numel <= 2 or not differs,
        nbytes,
    )


def sums(t: torch.Tensor, element: ElementType, flip: tuple[int, int] = (0, 0)) -> torch.Tensor:
    """The sums of ``spec.md`` before they are finished, on the tensor's device and without waiting for it.

    Returns:
        int64[5]: mix, value, bag, xor64, and non-zero if some element differs from the first.
    """
    totals = torch.zeros(5, dtype=torch.int64, device=t.device)
    first: torch.Tensor | None = None
    for start in range(0, t.numel(), CHUNK_ELEMENTS):
        codes = _chunk(t, element, start)
        if flip != (0, 0):
            codes = codes ^ _flip_codes(flip, element, codes)
        items = codes.view(-1, element.num_components)
        first = items[:1].clone() if first is None else first
        lanes = _lanes(codes, element.component_bytes)
        mixed = _mix_lanes(lanes + _positions(start * element.item_bytes // 8, lanes))
        words = _widen(codes, element)
        bag, value = (_narrow_terms if element.narrow else _wide_terms)(words, start * element.num_components)
        part = torch.stack([mixed.sum(), value.sum(), bag.sum(), totals[3] ^ _xor(lanes), (items != first).any().to(torch.int64)])
        totals = torch.cat([totals[:3] + part[:3], part[3:4], totals[4:] | part[4:]])
    return totals


def _chunk(t: torch.Tensor, element: ElementType, start: int) -> torch.Tensor:
    """The codes of elements ``start`` to ``start + CHUNK_ELEMENTS`` in logical order: int64, one per component, zero-extended.

    They may be the user's own memory: never write to them.
    """
    stop = min(start + CHUNK_ELEMENTS, t.numel())
    lengths, steps = merge_dimensions(tuple(t.shape), tuple(t.stride()))
    scale = element.num_components
    flat = _as_codes(t, element)  # a view of the components from the first element's address on
    if lengths == () or (len(lengths) == 1 and steps[0] == 1):
        codes = flat[start * scale : stop * scale].to(torch.int64)
    else:
        rest = torch.arange(start, stop, dtype=torch.int64, device=t.device)
        places = torch.zeros_like(rest)
        for length, step in zip(reversed(lengths), reversed(steps), strict=True):
            places += rest % length * (step * scale)
            rest //= length
        if scale == 2:
            places = torch.stack([places, places + 1], dim=1).view(-1)
        codes = flat[places].to(torch.int64)
    if element.component_bytes < 8:
        codes = codes & ((1 << (8 * element.component_bytes)) - 1)
    return codes


def _as_codes(t: torch.Tensor, element: ElementType) -> torch.Tensor:
    extent = 1 + sum((length - 1) * step for length, step in zip(t.shape, t.stride(), strict=True))
    flat = t.detach().as_strided((extent,), (1,), t.storage_offset())
    if flat.is_neg():
        flat = torch._neg_view(flat)
    if flat.is_conj():
        flat = torch._conj(flat)
    return flat.view(_CODES[element.component_bytes])


def _flip_codes(flip: tuple[int, int], element: ElementType, codes: torch.Tensor) -> torch.Tensor:
    size = element.component_bytes
    pattern = b"".join(word.to_bytes(8, "little") for word in flip)
    words = [int.from_bytes(pattern[k : k + size], "little", signed=size == 8) for k in range(0, 16, size)]
    repeats = -(-codes.numel() // len(words))
    return _constant(tuple(words), codes.device, stream_of(codes.device)).repeat(repeats)[: codes.numel()]


def stream_of(device: torch.device) -> int:
    """Raw handle of the stream that the calling thread's operators run on; 0 where there is none. Cost: 0.1 us."""
    return int(torch._C._cuda_getCurrentRawStream(device.index)) if device.type == "cuda" else 0


@functools.lru_cache(maxsize=64)
def _constant(what: str | tuple[int, ...], device: torch.device, stream: int) -> torch.Tensor:
    """Words, or the table of that name, on a device; sent without waiting for it, so there only for who comes later on this stream."""
    host = torch.tensor(_table(what) if isinstance(what, str) else what, dtype=torch.int64)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def _lanes(codes: torch.Tensor, size: int) -> torch.Tensor:
    if size == 8:
        return codes
    per_lane = 8 // size
    padding = -codes.numel() % per_lane
    if padding:
        codes = torch.cat([codes, codes.new_zeros(padding)])
    columns = codes.view(-1, per_lane)
    lanes = columns[:, 0].clone()
    for k in range(1, per_lane):
        lanes |= columns[:, k] << (8 * size * k)
    return lanes


def _widen(codes: torch.Tensor, element: ElementType) -> torch.Tensor:
    how = element.widening
    if how in (Widening.I8, Widening.I16, Widening.I32):
        unused = 64 - 8 * element.component_bytes
        return (codes << unused) >> unused
    if how == Widening.BF16:
        return codes << 16
    if how in (Widening.F16, Widening.TABLE8):
        name = element.name if how == Widening.TABLE8 else "float16"
        return _constant(name, codes.device, stream_of(codes.device))[codes]
    return codes


@functools.cache
def _table(name: str) -> tuple[int, ...]:
    if name != "float16":
        return float8_table(name)
    codes = np.arange(1 << 16, dtype=np.uint64)
    return tuple(numpy_twin.widen_float16(codes).astype(np.int64).tolist())


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _positions(first: int, like: torch.Tensor) -> torch.Tensor:
    indices = torch.arange(1, like.numel() + 1, dtype=torch.int64, device=like.device)
    return indices * _signed(constants.POSITION) + _signed(constants.POSITION * first & constants.MASK64)


def _high(x: torch.Tensor) -> torch.Tensor:
    """The upper half of each word; torch's own shift would copy the sign."""
    return (x >> 32) & constants.LOW32


def _wide_terms(words: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The terms of bag64 and value64 of 64-bit words, of which the first is component ``first``."""
    hashed = _mix_elements(words)
    placed = hashed ^ _positions(first, hashed)
    return hashed, (placed & constants.LOW32) * _high(placed)


def _narrow_terms(words: torch.Tensor, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for 32-bit words, whose value64 goes by pairs."""
    a, b = _mix_narrow(words)
    bag = a * b
    if words.numel() % 2:
        a_zero, b_zero = _mix_narrow(words.new_zeros(1))
        a, b = torch.cat([a, a_zero]), torch.cat([b, b_zero])
    places = _positions(first // 2, a[0::2])
    left = (a[0::2] + b[1::2] + places) & constants.LOW32
    right = (a[1::2] - b[0::2] + _high(places)) & constants.LOW32
    return bag, left * right


def _mix_narrow(words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = words * constants.SCATTER + _signed(constants.OFFSET)
    a = x & constants.LOW32
    return a, a ^ _high(x)


def _mix_lanes(x: torch.Tensor) -> torch.Tensor:
    """``M`` of every word; the mask makes the shift a logical one."""
    folded = x ^ ((x >> constants.LANE_FOLD) & ((1 << (64 - constants.LANE_FOLD)) - 1))
    return _spread(folded * _signed(constants.SPREAD))


def _mix_elements(x: torch.Tensor) -> torch.Tensor:
    """``G`` of every word."""
    return _spread((x ^ _high(x)) * _signed(constants.SPREAD) + _signed(constants.OFFSET))


def _spread(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _high(x)) * _signed(constants.FEED)
    return x ^ _high(x)


def _xor(words: torch.Tensor) -> torch.Tensor:
    """XOR of all words; torch has no such reduction on all devices and versions."""
    while words.numel() > 1:
        half = words.numel() // 2
        folded = words[:half] ^ words[half : 2 * half]
        words = torch.cat([folded, words[2 * half :]])
    return words[0]
