"""Tensors as blocks of bytes, of dtypes that numpy lacks, too."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Raw(NamedTuple):
    """Bytes with a dtype and a shape."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def block(array: Any, dtype: str = "") -> Raw:
    """A block of a numpy array; bfloat16 and 8-bit floats are given as their codes."""
    array = np.asarray(array)
    return Raw(dtype or array.dtype.name, array.shape, array.tobytes())


def bfloat16(values: Any) -> Any:
    """Codes of the nearest bfloat16 (ties to even) of finite float32 values; written apart from the code under test."""
    codes = np.asarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((codes + 0x7FFF + ((codes >> 16) & 1)) >> 16).astype(np.uint16)


def through_bfloat16(values: Any) -> Any:
    """float32 values after a pass through bfloat16."""
    return (bfloat16(values).astype(np.uint32) << 16).view(np.float32)


def flipped(array: Any, index: tuple[int, ...], bit: int) -> Any:
    """A copy with one bit of one element flipped."""
    codes = np.array(array).view(f"u{np.asarray(array).dtype.itemsize}")
    codes[index] ^= codes.dtype.type(1 << bit)
    return codes.view(np.asarray(array).dtype)


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> Any:
    """Seeded numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
