"""Whether two values of a snapshot are the same to the bit, and where they first are not."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import torch

from opguard_core.state.streams import unobserved


def first_difference(one: Any, other: Any, path: str) -> str:
    """Where two values differ, "" if nowhere. Devices and memory layout are not compared; NaN equals itself bit by bit.

    Args:
        one: A value as `tree.Writer` takes it.
        other: Another.
        path: What the place is called.

    Cost: reads both.
    """
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return "" if same_bits(one, other) else path
    if type(one) is not type(other) and not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return path
    if isinstance(one, Mapping):
        if one.keys() != other.keys():
            return f"{path}, its keys"
        pairs = [(key, one[key], other[key]) for key in one]
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{path}, its length"
        pairs = [(index, left, right) for index, (left, right) in enumerate(zip(one, other, strict=True))]
    elif isinstance(one, float):
        return "" if struct.pack("<d", one) == struct.pack("<d", other) else path
    elif hasattr(one, "tobytes"):
        same = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        return "" if same else path
    else:
        return "" if one == other else path
    return next((found for key, left, right in pairs if (found := first_difference(left, right, f"{path}.{key}"))), "")


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have one dtype, one shape and the same bytes, wherever they lie."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    with unobserved():
        left, right = (part.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for part in (one, other))
        return bool((left == right).all())
