"""Tensors that are not one plain array: what they are made of, or why their content is out of reach.

Sits below ``tensor.py``, which reads the parts and combines their digests (``fingerprint/spec.md`` section 5). Callers hide the few
torch calls made here from dispatch and function modes. What it cannot see: whether a subclass keeps values anywhere else
than in the tensors it declares.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch

Part: TypeAlias = torch.Tensor | bytes


class Unreadable(NamedTuple):
    """A tensor whose content could not be fingerprinted, and why; goes into the manifest's coverage."""

    reason: str


class Same(NamedTuple):
    """A wrapper without content of its own: fingerprint ``inner`` instead."""

    inner: torch.Tensor


class Composite(NamedTuple):
    """Several arrays under one name, in a fixed order; bytes are small facts such as a scale."""

    name: str
    parts: Sequence[Part]


class PlainMemory(NamedTuple):
    """Nothing special after all: its own memory is its content."""


Content: TypeAlias = Unreadable | Same | Composite | PlainMemory

# Wrappers whose logical content is that of one inner tensor, by class path: naming a class does not import its module.
_data_ptr = torch.Tensor.data_ptr  # as it is before capture notices its callers
_WRAPPERS = {
    "torch.distributed.tensor.DTensor": "_local_tensor",
    "torch.distributed.tensor._api.DTensor": "_local_tensor",
    "torch.distributed._tensor.api.DTensor": "_local_tensor",
    "torch._subclasses.functional_tensor.FunctionalTensor": "elem",
}
_wrapped_in: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
_FAKE = "torch._subclasses.fake_tensor.FakeTensor"
_ASYNC = "torch.distributed._functional_collectives.AsyncCollectiveTensor"
_JAGGED = "torch.nested._internal.nested_tensor.NestedTensor"
_SPARSE_COMPRESSED = {
    torch.sparse_csr: ("sparse_csr", "crow_indices", "col_indices"),
    torch.sparse_bsr: ("sparse_bsr", "crow_indices", "col_indices"),
    torch.sparse_csc: ("sparse_csc", "ccol_indices", "row_indices"),
    torch.sparse_bsc: ("sparse_bsc", "ccol_indices", "row_indices"),
}


def content(t: torch.Tensor, keys: frozenset[str]) -> Content:
    """What a tensor with these dispatch keys is made of.

    Args:
        t: Any tensor but a plain strided one.
        keys: As ``tensor.kind`` gives them.
    """
    if "Python" in keys:
        return _subclass(t)
    if any(key.startswith("FuncTorch") for key in keys):
        return _functorch(t)
    if "Functionalize" in keys:
        # Writes through an alias are applied lazily; without this the inner tensor may be older than what the program sees.
        torch._sync(t)
        return Same(torch._from_functional_tensor(t))
    if t.device.type == "meta":
        return Unreadable("a meta tensor has no content")
    if t.layout == torch.sparse_coo:
        return Composite("sparse_coo", (t._indices(), t._values()))
    if t.layout in _SPARSE_COMPRESSED:
        name, outer, inner = _SPARSE_COMPRESSED[t.layout]
        return Composite(name, (getattr(t, outer)(), getattr(t, inner)(), t.values()))
    if t.layout != torch.strided:
        return Unreadable(f"the layout {str(t.layout).removeprefix('torch.')} is opaque")
    if any(key.startswith("NestedTensor") for key in keys):
        return _nested(t)
    if t.is_quantized:
        return _quantised(t)
    return Unreadable("an unknown kind of tensor: " + "+".join(sorted(keys)))


def wrapped_in(cls: type) -> str:
    """The attribute of a wrapper that holds the one tensor whose content is the wrapper's; "" for other classes."""
    known = _wrapped_in.get(cls)
    if known is None:
        paths = [_class_path(one) for one in cls.__mro__]
        known = "" if _FAKE in paths else next((_WRAPPERS[path] for path in paths if path in _WRAPPERS), "")
        _wrapped_in[cls] = known
    return known


def _class_path(cls: type) -> str:
    """Module and name in ASCII: Python allows other letters in both."""
    return f"{cls.__module__}.{cls.__qualname__}".encode("ascii", "backslashreplace").decode("ascii")


def _subclass(t: torch.Tensor) -> Content:
    paths = [_class_path(cls) for cls in type(t).__mro__]
    if _FAKE in paths:
        return Unreadable("a fake tensor has no content")
    wrapped = wrapped_in(type(t))
    if wrapped:
        return Same(getattr(t, wrapped))
    if _ASYNC in paths:
        if not getattr(t, "completed", False):
            return Unreadable("an asynchronous collective that nobody waited for yet")
        return Same(t.elem)
    if _JAGGED in paths:
        if getattr(t, "_lengths", None) is not None:
            return Unreadable("a jagged nested tensor with holes, whose memory is not all written")
        return Composite("jagged", (t._offsets, t._values))
    flatten = getattr(t, "__tensor_flatten__", None)
    if flatten is not None:
        names = flatten()[0]
        inner = [getattr(t, name) for name in names]
        return Composite(_class_path(type(t)), [part for part in inner if isinstance(part, torch.Tensor)])
    if t.layout == torch.strided and t.device.type != "meta" and (t.numel() == 0 or _data_ptr(t)):
        return PlainMemory()
    return Unreadable(f"the tensor subclass {_class_path(type(t))} keeps its content out of reach (no __tensor_flatten__)")


def _functorch(t: torch.Tensor) -> Content:
    functorch = torch._C._functorch
    if functorch.is_batchedtensor(t):
        place = functorch.maybe_get_bdim(t)
        return Composite(f"batched:{place}", (functorch.get_unwrapped(t),))
    if functorch.is_gradtrackingtensor(t) or functorch.is_functionaltensor(t):
        return Same(functorch.get_unwrapped(t))
    return Unreadable("a functorch wrapper of an unknown kind")


def _nested(t: torch.Tensor) -> Content:
    """The constituents one by one: their sizes, then each as its own strided array."""
    sizes, strides, offsets = t._nested_tensor_size(), t._nested_tensor_strides(), t._nested_tensor_storage_offsets()
    if not sizes.numel():
        return Composite("nested", (sizes,))
    flat = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage())
    inner = [
        flat.as_strided(size, stride, offset)
        for size, stride, offset in zip(sizes.tolist(), strides.tolist(), offsets.tolist(), strict=True)
    ]
    return Composite("nested", (sizes, *inner))


def _quantised(t: torch.Tensor) -> Content:
    """The stored integers and what turns them into values."""
    if t.dtype not in (torch.qint8, torch.quint8, torch.qint32):
        return Unreadable(f"packed quantised elements ({t.dtype})")
    plain = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}[t.dtype]
    codes = torch.empty(0, dtype=plain, device=t.device).set_(t.untyped_storage(), t.storage_offset(), t.shape, t.stride())
    if t.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return Composite("quantised", (codes, struct.pack("<dq", t.q_scale(), t.q_zero_point())))
    scales, zeros, axis = t.q_per_channel_scales(), t.q_per_channel_zero_points(), t.q_per_channel_axis()
    return Composite("quantised", (codes, scales, zeros, struct.pack("<q", axis)))
