"""Turn values into JSON text that any reader accepts: ASCII, finite numbers, no types of ours."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any


def plain(value: Any) -> Any:
    """Rebuild ``value`` from dicts, lists, strings, numbers, booleans and None.

    JSON has no NaN and no infinities: they become the strings "nan", "inf" and "-inf".

    Raises:
        TypeError: The value holds something that has no plain form.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, PurePath):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(plain(item) for item in value)
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # a numpy scalar or array, without importing numpy
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no plain JSON form")


def dumps(value: Any, *, indent: int | None = None) -> str:
    """JSON text of ``value``; ASCII, so that no locale and no lone surrogate of a file name can break it."""
    return json.dumps(plain(value), ensure_ascii=True, allow_nan=False, indent=indent)
