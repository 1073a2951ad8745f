"""Values as they are after a pass through a lower precision, by rounding to nearest, ties to even.

What it cannot see: casts that round otherwise (truncation, stochastic rounding).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from opguard_core.evidence.damage.elements import elements_of

Values = npt.NDArray[np.float64]

# Exponent bits (emin of normal numbers, emax) and mantissa bits; tf32 is what tensor cores make of float32.
_FORMATS = {"float32": (-126, 127, 23), "tf32": (-126, 127, 10), "bfloat16": (-126, 127, 7), "float16": (-14, 15, 10)}
_LOWER = {
    "float64": ("float32", "tf32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"),
    "float32": ("tf32", "float16", "bfloat16", "float8_e5m2", "float8_e4m3fn"),
    "float16": ("bfloat16", "float8_e5m2", "float8_e4m3fn"),
    "bfloat16": ("float16", "float8_e5m2", "float8_e4m3fn"),
}
_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def lower_precisions(dtype: str) -> dict[str, Callable[[Values], Values]]:
    """Precisions that values of a dtype may have gone through, finest first, each with what it makes of numbers."""
    return {name: partial(rounded, name=name) for name in _LOWER.get(_PARTS.get(dtype, dtype), ())}


def rounded(values: Values, name: str) -> Values:
    """Numbers after a pass through a precision; what it cannot hold becomes infinite, NaN stays."""
    if name in _FORMATS:
        return _rounded(values, *_FORMATS[name])
    return _to_table(values, name)


def _rounded(values: Values, emin: int, emax: int, mantissa_bits: int) -> Values:
    with np.errstate(invalid="ignore", over="ignore"):
        exponent = np.frexp(values)[1] - 1
        quantum = np.ldexp(1.0, np.maximum(exponent, emin) - mantissa_bits)
        found = np.where(np.isfinite(values) & (values != 0), np.rint(values / quantum) * quantum, values)
        largest = float(np.ldexp(2.0 - 2.0**-mantissa_bits, emax))
        return np.where(np.abs(found) > largest, np.copysign(np.inf, found), found)


def _to_table(values: Values, name: str) -> Values:
    """By the table of an 8-bit float: its codes grow with its values, so the even code is the even mantissa."""
    table = elements_of(name).values(np.arange(128, dtype=np.uint8))
    table = table[np.isfinite(table)]
    magnitude = np.abs(values)
    with np.errstate(invalid="ignore"):
        above = np.clip(np.searchsorted(table, magnitude), 1, table.size - 1)
        low, high = table[above - 1], table[above]
        middle = (low + high) / 2
        up = (magnitude > middle) | ((magnitude == middle) & (above % 2 == 0))
        found = np.where(up, high, low)
        beyond = magnitude > table[-1] + (table[-1] - table[-2]) / 2
        found = np.where(beyond, np.inf, found)
        return np.where(np.isnan(values), values, np.copysign(found, values))
