"""Memory of tensors that the program hands around by other means: as addresses, numpy and CuPy arrays, ctypes pointers.

`Reads` tells which tensors were asked for their address or shared; an address, or an array over it, then leads back to the tensor's
storage. What it cannot tell: how far behind an address a function reads or writes; the tensor that was asked stands for it.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch

from opguard_core.probe import backends

MOST_SHOWN = 4096
_data_ptr = backends._data_ptr  # as it is before capture notices its callers
_weakly = torch.UntypedStorage._new_with_weak_ptr
_ARRAY_WORDS = ("__array_interface__", "__cuda_array_interface__")


class Shown(NamedTuple):
    """A tensor that was asked for its address: everything but its memory."""

    record: Any
    dtype: torch.dtype
    offset: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]


class Addresses:
    """Tensors by their address; holds no tensor.

    Args:
        storages: Of the rank.
    """

    def __init__(self, storages: Any) -> None:
        self._storages = storages
        self._shown: dict[int, Shown] = {}

    def show(self, tensor: torch.Tensor, record: Any) -> None:
        """A tensor's address is handed out. Call inside `quiet`. Cost: 1 us."""
        shown = self._shown
        if len(shown) >= MOST_SHOWN:
            for old in list(shown)[: MOST_SHOWN // 2]:
                shown.pop(old, None)
        address = _data_ptr(tensor)
        if address:
            shown.pop(address, None)  # again, as the newest
            shown[address] = Shown(record, tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))

    def was_shown(self, number: int) -> bool:
        """Whether a number is an address that the program was given, wherever in memory that lies."""
        return number in self._shown

    def tensor_at(self, address: int) -> torch.Tensor | None:
        """The living tensor that was shown with this address, or the storage that it lies in as bytes; None if there is none."""
        shown = self._shown.get(address)
        if shown is not None:
            storage = _weakly(shown.record.address)
            if storage is None:
                self._shown.pop(address, None)
            else:
                return _view(storage, shown.dtype, shown.offset, shown.sizes, shown.steps)
        for begin, one in list(self._shown.items()):
            if begin < address and (found := self._around(address, one)) is not None:
                return found
        return None

    def _around(self, address: int, shown: Shown) -> torch.Tensor | None:
        storage = _weakly(shown.record.address)
        return _bytes(storage) if storage is not None and _holds(storage, address) else None

    def tensor_of(self, value: Any) -> torch.Tensor | None:
        """The tensor whose memory an array, a ctypes pointer or an address is of; None for any other value. Call inside `quiet`."""
        kind = type(value)
        if kind is int:
            return self.tensor_at(value) if value > 1 << 12 and value in self._shown else None
        if isinstance(value, (ctypes._SimpleCData, ctypes._Pointer, ctypes.Array)):
            address = _pointed_to(value)
            return None if address is None else self.tensor_at(address)
        if kind.__module__.partition(".")[0] not in ("numpy", "cupy"):
            return None
        return self._of_array(value)

    def _of_array(self, array: Any) -> torch.Tensor | None:
        described = next((found for word in _ARRAY_WORDS if isinstance(found := getattr(array, word, None), dict)), None)
        if described is None or not described.get("data") or not described["data"][0]:
            return None
        address = int(described["data"][0])
        base = getattr(array, "base", None)
        while base is not None and not isinstance(base, torch.Tensor):
            base = getattr(base, "base", None)
        storage = base.untyped_storage() if isinstance(base, torch.Tensor) else self._storage_around(address)
        if storage is None:
            return None
        view = _like(array, storage, address)
        return _bytes(storage) if view is None else view

    def _storage_around(self, address: int) -> Any:
        """The storage of the program that an address lies in, looked for among those whose memory others share."""
        for record in self._storages.living():
            if record.foreign:
                storage = _weakly(record.address)
                if storage is not None and _holds(storage, address):
                    return storage
        return None


def _holds(storage: Any, address: int) -> bool:
    try:
        begin = storage.data_ptr()
    except RuntimeError:
        return False
    return bool(begin and begin <= address < begin + storage.nbytes())


def _pointed_to(value: Any) -> int | None:
    """Address that a ctypes object stands for, or points to."""
    if isinstance(value, ctypes.Array):
        return ctypes.addressof(value)
    if isinstance(value, ctypes._Pointer):
        return ctypes.cast(value, ctypes.c_void_p).value
    held = value.value
    # Only pointers: a number that happens to be an address is none.
    return held if isinstance(held, int) and isinstance(value, ctypes.c_void_p) else None


def _view(storage: Any, dtype: torch.dtype, offset: int, sizes: tuple[int, ...], steps: tuple[int, ...]) -> torch.Tensor:
    view = torch.empty(0, dtype=dtype, device=storage.device)
    view.set_(storage, offset, sizes, steps)
    return view


def _bytes(storage: Any) -> torch.Tensor:
    return _view(storage, torch.uint8, 0, (storage.nbytes(),), (1,))


def _like(array: Any, storage: Any, address: int) -> torch.Tensor | None:
    """A tensor with the shape of an array, None where torch has none such."""
    dtype = getattr(torch, str(getattr(array, "dtype", "")), None)
    if not isinstance(dtype, torch.dtype):
        return None
    offset, rest = divmod(address - storage.data_ptr(), dtype.itemsize)
    steps = [divmod(step, dtype.itemsize) for step in array.strides]
    if rest or any(left or step < 0 for step, left in steps):
        return None
    try:
        return _view(storage, dtype, offset, tuple(array.shape), tuple(step for step, _ in steps))
    except RuntimeError:  # it reaches beyond the storage
        return None
