"""Fingerprint of a torch tensor: finds out what kind it is and hands its memory to the right twin.

Sits between the engines and the fingerprint, inside the user's process. For plain host tensors no operator is called: only
attributes and the address are read, so dispatch and function modes see nothing, no version counter moves, no autograd graph
grows. For other kinds and devices the operations are hidden from modes and autograd. What cannot be read is answered with a
reason, never guessed at and never dereferenced. A device that would have to be waited for gives a promise (``promise.py``).
What it cannot see: whether the memory has ever been written.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch

from opguard_core.fingerprint import cpu
from opguard_core.fingerprint.composite import combine
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES, ElementType, opaque
from opguard_core.probe import backends, kinds, torch_twin
from opguard_core.probe.backends import hidden as _hidden
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import Deliveries, Derived, Known, Layout, View

__all__ = ["Unreadable", "fingerprint", "fingerprint_host", "kind"]

_MAX_READERS = 8192
_Way = TypeVar("_Way", cpu.Reader, Layout)
_NOISE_KEYS = ("ADInplaceOrView", "Autograd", "Autocast", "PythonTLSSnapshot")
_HOST = frozenset({"CPU"})
_SIGNS = frozenset({"Conjugate", "Negative"})
_ZERO = ctypes.create_string_buffer(16)

_data_ptr = torch.Tensor.data_ptr  # as it is before capture notices its callers
_dispatch_keys = torch._C._dispatch_keys
_function_modes = torch._C._len_torch_function_stack
_is_copy_on_write = getattr(torch._C, "_is_cow_tensor", None)
_exact = (torch.Tensor, torch.nn.Parameter)
_readers: dict[tuple[Any, ...], cpu.Reader] = {}
_layouts: dict[tuple[Any, ...], Layout] = {}
_kinds: dict[int, frozenset[str]] = {}


def fingerprint(t: torch.Tensor) -> Known | Unreadable:
    """Digest the logical content of ``t``.

    Args:
        t: Any tensor. Must hold memory that has been written (the caller knows; this function cannot).

    Returns:
        Its digests; for a CUDA tensor the promise of them, taken behind what the current stream has been given so far; or the reason
        why there are none.

    Cost: 2 us for a small plain host tensor of a shape seen before, then memory speed; no allocation, no operator. CUDA: one launch,
    never a wait. Other devices: see ``torch_twin``.
    """
    if type(t) in _exact and not _function_modes():
        return _read(t)
    with torch._C.DisableTorchFunction():
        if torch.nn.parameter.is_lazy(t):
            return Unreadable("a lazy parameter that has no shape yet")
        return _read(t)


def kind(t: torch.Tensor) -> frozenset[str]:
    """The dispatch keys that say what ``t`` is: {"CPU"} for a plain host tensor."""
    keys = _dispatch_keys(t)
    raw = keys.raw_repr()
    found = _kinds.get(raw)
    if found is None:
        text = str(keys)
        names = text[text.index("(") + 1 : text.rindex(")")].split(", ")
        found = frozenset(name for name in names if not name.startswith(_NOISE_KEYS))
        found = _kinds[raw] = _HOST if found == _HOST else found
    return found


def fingerprint_host(t: torch.Tensor) -> Digests | Unreadable:
    """As `fingerprint`, for a plain tensor in host memory that we have made ourselves: at once, whoever digests the program's."""
    return _read_host(t)


def _read(t: torch.Tensor) -> Known | Unreadable:
    keys = kind(t)
    if keys is _HOST:
        return _read_host(t)
    if _is_dense(t, keys):
        return _read_dense(t, keys)
    if "ZeroTensor" in keys and t.layout == torch.strided:
        return cpu.fingerprint(ctypes.addressof(_ZERO), _element(t.dtype).name, t.shape, (0,) * t.dim())
    with _hidden():
        return _read_content(t, kinds.content(t, keys))


def _kept(known: dict[tuple[Any, ...], _Way], make: Callable[..., _Way], t: torch.Tensor, flip: tuple[int, int] = (0, 0)) -> _Way:
    """How ``t`` is read, whatever its address: made once for each dtype, shape, strides and signs."""
    shape, strides = t.shape, t.stride()
    key = (t.dtype, shape, strides, flip)
    way = known.get(key)
    if way is None:
        if len(known) >= _MAX_READERS:
            known.clear()
        way = known[key] = make(_element(t.dtype), tuple(shape), strides, flip)
    return way


def plan_of(t: torch.Tensor) -> cpu.Reader | Layout | None:
    """How ``t`` is read wherever it lies, at once or later, if it is plain memory without signs to be flipped; None if not."""
    keys = kind(t)
    if keys is _HOST:
        return _kept(_readers, cpu.Reader, t)
    if keys & _SIGNS or not _is_dense(t, keys) or backends.deliveries_for(t.device.type) is None:
        return None
    return _kept(_layouts, Layout, t)


def _is_dense(t: torch.Tensor, keys: frozenset[str]) -> bool:
    is_strided = len(keys - _SIGNS) == 1 and t.layout == torch.strided and not t.is_quantized and not t.is_nested
    return is_strided and t.device.type != "meta"


def _read_host(t: torch.Tensor, flip: tuple[int, int] = (0, 0)) -> Digests | Unreadable:
    reader = _kept(_readers, cpu.Reader, t, flip)
    extent = reader.extent_bytes
    if not extent:
        return reader.read(0)
    if t.storage_offset() * t.itemsize + extent > t.untyped_storage().nbytes():
        return Unreadable("the storage was freed or is smaller than the tensor")
    address = address_of(t)
    if not address:
        return Unreadable("the tensor has no memory of its own")
    return reader.read(address)


def address_of(t: torch.Tensor) -> int:
    """Where element (0, ..., 0) lies. ``data_ptr`` asks for writable memory, which would end a copy-on-write sharing."""
    if _is_copy_on_write is not None and _is_copy_on_write(t):
        return int(torch._C._data_address(t)) + t.storage_offset() * t.itemsize
    return int(_data_ptr(t))


def _read_dense(t: torch.Tensor, keys: frozenset[str]) -> Known | Unreadable:
    """Conjugate and negative views, and other devices."""
    flip = (0, 0)
    if keys & _SIGNS:
        if not (t.is_floating_point() or t.is_complex()):
            return Unreadable(f"a negative view of {t.dtype}")
        flip = _sign_flips(t, conjugate="Conjugate" in keys, negative="Negative" in keys)
    later = backends.deliveries_for(t.device.type)
    if later is not None:
        return _read_later(t, flip, later)
    if t.device.type == "cpu":
        return _read_host(t, flip)
    with _hidden():
        return torch_twin.fingerprint(t, _element(t.dtype), flip)


def _read_later(t: torch.Tensor, flip: tuple[int, int], later: Deliveries) -> Known | Unreadable:
    layout = _kept(_layouts, Layout, t, flip)
    if not layout.numel:
        return torch_twin.finished((0,) * 5, 0, layout.element)
    if t.storage_offset() * t.itemsize + layout.extent_bytes > t.untyped_storage().nbytes():
        return Unreadable("the storage was freed or is smaller than the tensor")
    address = address_of(t)
    if not address:
        return Unreadable("the tensor has no memory of its own")
    return later.ask(View(t, layout, address, t.device.index or 0, torch_twin.stream_of(t.device)))


def _read_content(t: torch.Tensor, content: kinds.Content) -> Known | Unreadable:
    if isinstance(content, Unreadable):
        return content
    if isinstance(content, kinds.Same):
        return _read(content.inner)
    if isinstance(content, kinds.PlainMemory):
        return _read_dense(t, kind(t) & _SIGNS)
    parts: list[Digests] = []
    promised: list[Known] = []
    for part in content.parts:
        digests = cpu.digests_of_bytes(part) if isinstance(part, bytes) else _read(part)
        if isinstance(digests, Unreadable):
            return _unreadable_part(content.name, digests)
        promised.append(digests)
        if isinstance(digests, Digests):
            parts.append(digests)
    if len(parts) == len(promised):
        return combine(content.name, parts)
    nbytes = sum(part.nbytes for part in promised)
    return Derived(promised, partial(combine, content.name), partial(_unreadable_part, content.name), nbytes)


def _unreadable_part(name: str, part: Unreadable) -> Unreadable:
    return Unreadable(f"part of {name}: {part.reason}")


def _element(dtype: torch.dtype) -> ElementType:
    name = str(dtype).removeprefix("torch.")
    # Packed, or newer than our list: its bytes as unsigned integers.
    return ELEMENT_TYPES.get(name) or opaque(name, dtype.itemsize)


def _sign_flips(t: torch.Tensor, *, conjugate: bool, negative: bool) -> tuple[int, int]:
    """The 16-byte pattern that turns the stored signs of floats into the logical ones."""
    num_components = 2 if t.is_complex() else 1
    bits = 8 * t.itemsize // num_components
    pattern = 0
    for component in range(128 // bits):
        imaginary = component % num_components == 1
        if negative != (conjugate and imaginary):
            pattern |= 1 << (bits * (component + 1) - 1)
    return pattern & ((1 << 64) - 1), pattern >> 64
