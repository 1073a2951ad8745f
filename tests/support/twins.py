"""The three host implementations of the fingerprint under one signature, and strided arrays to try them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opguard_core.fingerprint import cpu, native, numpy_twin, reference
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES

STORED_AS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
Twin = Callable[[Any, str], Digests]


def strides_of(array: Any) -> tuple[int, ...]:
    return tuple(step // array.itemsize for step in array.strides)


def oracle(array: Any, dtype: str) -> Digests:
    return reference.fingerprint(array, dtype)


def compiled(array: Any, dtype: str) -> Digests:
    return cpu.fingerprint(array.ctypes.data, dtype, array.shape, strides_of(array))


def chunked(array: Any, dtype: str) -> Digests:
    return numpy_twin.fingerprint(array.ctypes.data, ELEMENT_TYPES[dtype], array.shape, strides_of(array))


def native_or_skip() -> native.Native:
    loaded = cpu.implementation()
    if isinstance(loaded, native.NoNative):
        pytest.skip(loaded.reason)
    return loaded


def random_codes(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, offset_bytes: int = 0) -> Any:
    """An array of random bits of that dtype's item size, starting ``offset_bytes`` away from the allocation."""
    size = ELEMENT_TYPES[dtype].item_bytes
    nbytes = int(np.prod(shape, dtype=np.int64)) * size
    raw = rng.integers(0, 256, nbytes + offset_bytes, dtype=np.uint8)
    return np.ndarray(shape, STORED_AS[size], raw[offset_bytes:].data)
