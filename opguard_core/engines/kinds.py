"""Kinds of tensor: which are plain memory, and the readable parts of those that are not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from opguard_core.probe.tensor import Unreadable, kind

_PLAIN_KINDS: dict[frozenset[str], bool] = {}
# Keys that mean an ordinary strided tensor on some device; the others say that the memory is something else.
_ALTERING = (
    "BatchedNestedTensor",
    "FuncTorch",
    "Functionalize",
    "Meta",
    "Mkldnn",
    "Nested",
    "Python",
    "Quantized",
    "Sparse",
    "ZeroTensor",
    "Batched",
)


class Part(NamedTuple):
    """One readable piece of a tensor.

    Attributes:
        name: Appended to the slot path, "" for the whole.
        tensor: The piece.
        copied: Whether it is a copy made to be read, not the program's own memory.
    """

    name: str
    tensor: torch.Tensor
    copied: bool = False


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is strided memory of its own. Cost: about 0.5 us."""
    keys = kind(tensor)
    plain = _PLAIN_KINDS.get(keys)
    if plain is None:
        plain = _PLAIN_KINDS[keys] = bool(keys) and not any(key.startswith(_ALTERING) for key in keys)
    return plain


def parts_of(tensor: torch.Tensor) -> list[Part] | Unreadable:
    """Take a tensor that is not plain apart.

    Returns:
        Its parts; none for a tensor without bytes (meta, fake); or why it cannot be read. Called with dispatch modes off.
    """
    keys = kind(tensor)
    if "Python" in keys or type(tensor).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        return _wrapped(tensor)
    names = " ".join(keys)
    if "Meta" in names:
        return []
    if "SparseCsr" in names:
        return _compressed(tensor)
    if "Sparse" in names:
        return [Part("indices", tensor._indices()), Part("values", tensor._values())]
    if "Nested" in names:
        return [Part("values", tensor.values()), Part("sizes", tensor._nested_tensor_size())]
    if "Quantized" in names:
        return [Part("", tensor.int_repr(), copied=True)]
    if "Mkldnn" in names:
        return [Part("", tensor.to_dense(), copied=True)]
    return Unreadable("kind " + "+".join(sorted(keys)))


def pieces(tensors: Iterable[tuple[str, torch.Tensor]], *, copied: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """Slot path and tensor, with what is not plain memory taken apart as the probe does; what cannot be read is left out.

    Args:
        tensors: Slot paths and tensors.
        copied: Whether copies that are made to be read are among them.
    """
    for path, tensor in tensors:
        if is_plain(tensor):
            yield path, tensor
            continue
        parts = parts_of(tensor)
        if not isinstance(parts, Unreadable):
            inner = ((f"{path}.{part.name}" if part.name else path, part.tensor) for part in parts if copied or not part.copied)
            yield from pieces(inner, copied=copied)


def _compressed(tensor: torch.Tensor) -> list[Part] | Unreadable:
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [Part("crow", tensor.crow_indices()), Part("col", tensor.col_indices()), Part("values", tensor.values())]
    return [Part("ccol", tensor.ccol_indices()), Part("row", tensor.row_indices()), Part("values", tensor.values())]


def _wrapped(tensor: torch.Tensor) -> list[Part] | Unreadable:
    """A subclass that holds its data in other tensors says which by `__tensor_flatten__`."""
    cls = type(tensor)
    if cls.__name__ == "FakeTensor":
        return []
    if cls.__name__ == "AsyncCollectiveTensor" and not getattr(tensor, "completed", False):
        return Unreadable("an asynchronous collective that nobody waited for yet")
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return Unreadable(f"subclass {cls.__module__}.{cls.__qualname__} does not say what it holds (__tensor_flatten__)")
    names, _ = flatten()
    return [Part(name.lstrip("_"), inner) for name in names if isinstance(inner := getattr(tensor, name), torch.Tensor)]
