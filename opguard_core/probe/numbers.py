"""Digests of Python numbers: those of the 0-dimensional tensor that torch makes of one, without making it."""

from __future__ import annotations

import ctypes
import struct
from functools import lru_cache

from opguard_core.fingerprint import cpu
from opguard_core.fingerprint.digest import Digests

_FLOAT, _INT = struct.Struct("<d"), struct.Struct("<q")


def dtype_of(value: float) -> str:
    """Of the tensor that a number stands for."""
    return "float64" if isinstance(value, float) else "int64"


def digests_of_number(value: float) -> Digests:
    """Digest a float as float64, an int or a bool as int64.

    Args:
        value: The number.

    Raises:
        struct.error: An int has more than 64 bits.

    Cost: 0.3 us for one that was met lately, as most are: an optimizer has the same step for each parameter.
    """
    is_float = isinstance(value, float)
    return _digests(is_float, (_FLOAT if is_float else _INT).pack(value))


@lru_cache(maxsize=1024)
def _digests(is_float: bool, data: bytes) -> Digests:
    buffer = ctypes.create_string_buffer(data, len(data))
    return cpu.fingerprint(ctypes.addressof(buffer), "float64" if is_float else "int64", (), ())
