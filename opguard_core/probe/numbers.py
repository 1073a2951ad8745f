"""Digests of Python numbers: those of the 0-dimensional tensor that torch makes of one, without making it."""

from __future__ import annotations

import ctypes
import struct
from functools import lru_cache

from opguard_core.fingerprint import cpu
from opguard_core.fingerprint.digest import Digests

_FLOAT, _INT = struct.Struct("<d"), struct.Struct("<q")
_LIMIT = 1 << 63  # of an int64


def dtype_of(value: float) -> str:
    """Of the tensor that a number stands for; no tensor has an int of more than 64 bits as an element: it stands for its bytes."""
    return "float64" if isinstance(value, float) else "int64" if -_LIMIT <= value < _LIMIT else "uint8"


def digests_of_number(value: float) -> Digests:
    """Digest a float as float64, an int or a bool as int64, a larger int as its bytes (two's complement, whole words, lowest first).

    Args:
        value: The number.

    Cost: 0.3 us for one that was met lately, as most are: an optimizer has the same step for each parameter.
    """
    if isinstance(value, float):
        return _digests("float64", _FLOAT.pack(value))
    if -_LIMIT <= value < _LIMIT:
        return _digests("int64", _INT.pack(value))
    words = (value if value >= 0 else ~value).bit_length() // 64 + 1  # one bit more for the sign
    return _digests("uint8", value.to_bytes(words * _INT.size, "little", signed=True))


@lru_cache(maxsize=1024)
def _digests(dtype: str, data: bytes) -> Digests:
    buffer = ctypes.create_string_buffer(data, len(data))
    shape, strides = ((len(data),), (1,)) if dtype == "uint8" else ((), ())
    return cpu.fingerprint(ctypes.addressof(buffer), dtype, shape, strides)
