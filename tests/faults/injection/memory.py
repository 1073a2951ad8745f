"""Raw bytes of plain host tensors: no operator runs, no version counter moves, no mode sees it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

_data_ptr = torch.Tensor.data_ptr  # as it is before capture notices its callers
_EXACT = (torch.Tensor, torch.nn.Parameter)


def is_plain(value: Any) -> bool:
    """A tensor whose memory can be read and written as it lies."""
    return type(value) in _EXACT and value.layout is torch.strided and value.is_cpu and not value.dtype.is_complex


def elements(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's memory as an array of opaque elements, same shape and strides; writable."""
    size = tensor.itemsize
    shape = tuple(tensor.shape)
    if 0 in shape:
        return np.zeros(shape, f"V{size}")
    strides = tuple(step * size for step in tensor.stride())
    extent = size + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    buffer = (ctypes.c_ubyte * extent).from_address(_data_ptr(tensor))
    flat = np.frombuffer(buffer, np.uint8)
    return np.ndarray(shape, f"V{size}", flat, strides=strides)


def content(tensor: torch.Tensor) -> bytes:
    """The tensor's values in row-major order."""
    return elements(tensor).tobytes()


def flip(tensor: torch.Tensor, element: int, bit: int) -> None:
    """Flip one bit of one element (row-major index)."""
    array = elements(tensor)
    at = np.unravel_index(element, array.shape) if array.ndim else ()
    value = bytearray(array[at].tobytes())
    value[bit // 8] ^= 1 << (bit % 8)
    array[at] = np.frombuffer(bytes(value), array.dtype)[0]


def swap(tensor: torch.Tensor, dim: int, first: int, second: int) -> bool:
    """Exchange two rows along a dimension; False if they hold the same bytes, and then nothing happens."""
    array = np.moveaxis(elements(tensor), dim, 0)
    one, other = array[first].copy(), array[second].copy()
    if one.tobytes() == other.tobytes():
        return False
    array[first], array[second] = other, one
    return True


def restore(tensor: torch.Tensor, values: bytes) -> None:
    """Put back what `content` returned."""
    array = elements(tensor)
    array[...] = np.frombuffer(values, array.dtype).reshape(array.shape)
