"""The logical bytes of a plain tensor, taken out or put in: what a fingerprint digests, in full.

Sits beside ``tensor.py``, inside the user's process. Host memory is read and written directly, so no operator runs, no version counter
moves and no graph grows. Other devices are copied on the stream that the calling thread's operators run on, which alone is waited for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from opguard_core.fingerprint.layout import merge_dimensions
from opguard_core.probe.backends import hidden
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.tensor import _SIGNS, _sign_flips, address_of, kind

_UNSIGNED = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "<c16"}
_OVERLAPS = 1  # source: MemOverlap::Yes in ATen/MemoryOverlap.h


class _Memory:
    """Foreign memory for ``np.asarray``; the tensor must outlive it."""

    def __init__(self, tensor: torch.Tensor, *, writable: bool) -> None:
        lengths, steps = merge_dimensions(tuple(tensor.shape), tensor.stride())
        self.__array_interface__ = {
            "version": 3,
            "data": (address_of(tensor), not writable),
            "typestr": _UNSIGNED[tensor.itemsize],
            "shape": lengths,
            "strides": tuple(step * tensor.itemsize for step in steps),
        }


def logical_bytes(tensor: torch.Tensor) -> bytes | Unreadable:
    """Copy the content of a plain tensor: row-major, little-endian, whatever its strides, as its fingerprint reads it.

    Args:
        tensor: Plain memory (`engines.kinds.is_plain`) that has been written.

    Returns:
        Its bytes, or the reason why there are none.

    Cost: one copy on the host; elsewhere one copy to the host, and another on the device if the tensor is not contiguous.
    """
    if not tensor.numel():
        return b""
    if tensor.device.type != "cpu":
        with hidden():
            # On the current stream, behind the operator; waits for that stream only.
            return logical_bytes(tensor.resolve_conj().resolve_neg().contiguous().to("cpu"))
    problem = _out_of_reach(tensor)
    if problem:
        return Unreadable(problem)
    data = np.asarray(_Memory(tensor, writable=False)).tobytes()
    flip = _flip(tensor)
    return (np.frombuffer(data, np.uint8) ^ _pattern(flip, len(data))).tobytes() if any(flip) else data


def overwrite(tensor: torch.Tensor, data: bytes | memoryview) -> None:
    """Put bytes into a plain tensor as if its operator had written them: no version counter moves.

    Args:
        tensor: A tensor that `refusal` has no objection to.
        data: As many logical bytes as it has.

    Cost: as `logical_bytes`.
    """
    if not tensor.numel():
        return
    if tensor.device.type == "cpu":
        flip = _flip(tensor)
        if any(flip):
            data = (np.frombuffer(data, np.uint8) ^ _pattern(flip, len(data))).tobytes()
        memory = np.asarray(_Memory(tensor, writable=True))
        memory[...] = np.frombuffer(data, memory.dtype).reshape(memory.shape)
        return
    with hidden(), torch._C._AutoDispatchBelowAutograd():
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        # Blocking: the host copy is gone when this returns.
        tensor.copy_(flat.view(tensor.dtype).reshape(tensor.shape))


def refusal(tensor: torch.Tensor) -> str:
    """Why bytes cannot be put into a plain tensor; empty if they can."""
    if tensor.numel() and torch._debug_has_internal_overlap(tensor) == _OVERLAPS:
        return "several of its elements share memory"
    return _out_of_reach(tensor) if tensor.numel() and tensor.device.type == "cpu" else ""


def _out_of_reach(tensor: torch.Tensor) -> str:
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    if tensor.itemsize not in _UNSIGNED:
        return f"elements of {tensor.itemsize} bytes"
    if (tensor.storage_offset() + reach) * tensor.itemsize > tensor.untyped_storage().nbytes():
        return "the storage was freed or is smaller than the tensor"
    return "" if address_of(tensor) else "the tensor has no memory of its own"


def _flip(tensor: torch.Tensor) -> tuple[int, int]:
    signs = kind(tensor) & _SIGNS
    return _sign_flips(tensor, conjugate="Conjugate" in signs, negative="Negative" in signs) if signs else (0, 0)


def _pattern(flip: tuple[int, int], nbytes: int) -> Any:
    return np.resize(np.array(flip, dtype="<u8").view(np.uint8), nbytes)
