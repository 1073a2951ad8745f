"""Fingerprint of a torch tensor: finds out what kind it is and hands its memory to the right twin.

Sits between the engines and the fingerprint, inside the user's process. For host tensors no operator is called: only
attributes and the address are read, so dispatch and function modes see nothing, no version counter moves, no autograd graph
grows. What cannot be read is answered with a reason, never guessed at and never dereferenced.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from opguard_core.fingerprint import cpu
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES, opaque


class Unreadable(NamedTuple):
    """A tensor whose content could not be fingerprinted, and why; goes into the manifest's coverage."""

    reason: str


class _Place(NamedTuple):
    """What does not depend on the data: how the CPU twin names the dtype, and the bytes from the address to the last one."""

    dtype: str
    extent_bytes: int


_MAX_PLACES = 8192
_NOISE_KEYS = ("ADInplaceOrView", "Autograd", "Autocast", "PythonTLSSnapshot")

_dispatch_keys = torch._C._dispatch_keys
_is_copy_on_write = getattr(torch._C, "_is_cow_tensor", None)
_function_modes = torch._C._len_torch_function_stack
_places: dict[tuple[Any, ...], _Place] = {}
_kinds: dict[int, frozenset[str]] = {}
_PLAIN = frozenset({"CPU"})


def fingerprint(t: torch.Tensor) -> Digests | Unreadable:
    """Digest the logical bytes of ``t``.

    Args:
        t: Any tensor. Must hold memory that has been written (the caller knows; this function cannot).

    Returns:
        Its digests, or the reason why there are none.

    Cost: about 4 us for a small host tensor of a shape seen before, then memory speed; no allocation, no operator.
    """
    if _function_modes():
        with torch._C.DisableTorchFunction():
            return _read(t)
    return _read(t)


def kind(t: torch.Tensor) -> frozenset[str]:
    """The dispatch keys that say what ``t`` is: {"CPU"} for a plain host tensor."""
    keys = _dispatch_keys(t)
    raw = keys.raw_repr()
    found = _kinds.get(raw)
    if found is None:
        text = str(keys)
        names = text[text.index("(") + 1 : text.rindex(")")].split(", ")
        found = _kinds[raw] = frozenset(name for name in names if not name.startswith(_NOISE_KEYS))
    return found


def _read(t: torch.Tensor) -> Digests | Unreadable:
    keys = kind(t)
    if keys is _PLAIN or keys == _PLAIN:
        return _read_host(t, (0, 0))
    if keys - {"Conjugate", "Negative"} == _PLAIN:
        return _read_host(t, _sign_flips(t.dtype, conjugate="Conjugate" in keys, negative="Negative" in keys))
    return Unreadable("kind " + "+".join(sorted(keys)))


def _read_host(t: torch.Tensor, flip: tuple[int, int] | Unreadable) -> Digests | Unreadable:
    if isinstance(flip, Unreadable):
        return flip
    dtype, shape, strides = t.dtype, t.shape, t.stride()
    place = _places.get((dtype, shape, strides))
    if place is None:
        place = _remember(dtype, shape, strides)
    if place.extent_bytes and t.storage_offset() * dtype.itemsize + place.extent_bytes > t.untyped_storage().nbytes():
        return Unreadable("the storage was freed or is smaller than the tensor")
    return cpu.fingerprint(_address(t), place.dtype, shape, strides, flip)


def _address(t: torch.Tensor) -> int:
    """Where element (0, ..., 0) lies. ``data_ptr`` asks for writable memory, which would end a copy-on-write sharing."""
    if _is_copy_on_write is not None and _is_copy_on_write(t):
        return int(torch._C._data_address(t)) + t.storage_offset() * t.dtype.itemsize
    return int(t.data_ptr())


def _remember(dtype: torch.dtype, shape: torch.Size, strides: tuple[int, ...]) -> _Place:
    name = str(dtype).removeprefix("torch.")
    if name not in ELEMENT_TYPES:  # packed or newer than this list: its bytes as unsigned integers
        name = f"uint{8 * opaque(name, dtype.itemsize).item_bytes}"
    last = sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
    place = _Place(name, 0 if 0 in shape else (last + 1) * dtype.itemsize)
    if len(_places) >= _MAX_PLACES:
        _places.clear()
    _places[dtype, shape, strides] = place
    return place


def _sign_flips(dtype: torch.dtype, *, conjugate: bool, negative: bool) -> tuple[int, int] | Unreadable:
    """The 16-byte pattern that turns stored signs into logical ones."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return Unreadable(f"a negative view of {dtype}")
    num_components = 2 if dtype.is_complex else 1
    bits = 8 * dtype.itemsize // num_components
    pattern = 0
    for component in range(128 // bits):
        imaginary = component % num_components == 1
        if negative != (conjugate and imaginary):
            pattern |= 1 << (bits * (component + 1) - 1)
    return pattern & (1 << 64) - 1, pattern >> 64
