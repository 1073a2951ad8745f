"""Fingerprint of host memory: the compiled twin where there is a compiler, numpy otherwise.

Runs inside the user's process, between their operators: touches no random stream, makes no torch call, writes nothing but its
own build cache, allocates nothing of the tensor's size. What it cannot see: whether the address is valid; the caller vouches.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from opguard_core.fingerprint import native, numpy_twin
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES, ElementType, Widening, float8_table
from opguard_core.fingerprint.layout import merge_dimensions

# A call that is over within some microseconds keeps the GIL: giving it up invites a switch to another thread, and getting it
# back can then take a whole switch interval (5 ms). A longer one lets the user's other threads work meanwhile.
RELEASE_GIL_BYTES = 1 << 16
_MAX_READERS = 8192

_Exchange = ctypes.c_uint64 * 6  # in: the address; out: mix64, value64, bag64, xor32, trivial, nbytes
_unpack = struct.Struct("<4Q?7xQ").unpack_from
_new_digests = tuple.__new__
_readers: dict[tuple[Any, ...], Reader] = {}
_tables: dict[str, Any] = {}
_loaded: native.Native | native.NoNative | None = None


def implementation() -> native.Native | native.NoNative:
    """The compiled twin, built on the first call, or the reason why numpy is used."""
    global _loaded
    if _loaded is None:
        _loaded = native.load()
    return _loaded


class Reader:
    """Everything about one (dtype, shape, strides) that does not depend on the address, worked out once.

    Args:
        element: The dtype.
        shape: Lengths.
        strides_elements: Strides in elements, any sign, 0 included.
        flip: XORed into every 16 logical bytes as two little-endian words (conjugate and negative views).

    Attributes:
        extent_bytes: From the address to one past the last byte read; 0 for an empty array. Strides are not negative.
        plan: For the compiled twin; None if it cannot read this.
    """

    __slots__ = ("_call", "_plan", "_slow", "extent_bytes", "plan")

    def __init__(
        self, element: ElementType, shape: tuple[int, ...], strides_elements: tuple[int, ...], flip: tuple[int, int] = (0, 0)
    ) -> None:
        last = sum((length - 1) * step for length, step in zip(shape, strides_elements, strict=True))
        self.extent_bytes = 0 if 0 in shape else (last + 1) * element.item_bytes
        lengths, steps = ((0,), (1,)) if 0 in shape else merge_dimensions(shape, strides_elements)
        loaded = implementation()
        self._slow = (element, lengths, steps, flip)
        self._call: Any = None
        self._plan: Any = None
        self.plan: native.Plan | None = None
        if isinstance(loaded, native.Native) and len(lengths) <= native.MAX_DIMS:
            self.plan = plan = _plan(element, lengths, steps, flip)
            self._call = loaded.holding if plan.numel * plan.item_bytes < RELEASE_GIL_BYTES else loaded.releasing
            self._plan = ctypes.byref(plan)

    def read(self, pointer: int) -> Digests:
        """Digest the array whose element (0, ..., 0) is at ``pointer``.

        Cost: 0.6 us for a small array, then memory speed; no allocation of the array's size.
        """
        call = self._call
        if call is None:
            return numpy_twin.fingerprint(pointer, *self._slow)
        exchange = _Exchange(pointer)
        call(self._plan, exchange)
        digests: Digests = _new_digests(Digests, _unpack(exchange))
        return digests


class Readers:
    """Readers of arrays that are digested together, time and again.

    Args:
        readers: In the order of the arrays.
    """

    __slots__ = ("_call", "_plans", "_readers")

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = tuple(readers)
        self._call: Any = None
        self._plans: Any = None
        loaded = implementation()
        plans = [reader.plan for reader in readers if reader.plan is not None]
        if isinstance(loaded, native.Native) and len(plans) == len(readers):
            nbytes = sum(plan.numel * plan.item_bytes for plan in plans)
            self._call = loaded.holding_many if nbytes < RELEASE_GIL_BYTES else loaded.releasing_many
            self._plans = np.array([ctypes.addressof(plan) for plan in plans], dtype=np.uint64)

    def read(self, addresses: Sequence[int]) -> numpy_twin.Words:
        """Digest the arrays whose elements (0, ..., 0) are at these addresses.

        Returns:
            A row for each: mix64, value64, bag64, xor32.

        Cost: one call, 0.1 us a small array, then memory speed.
        """
        if self._call is None:
            rows = [reader.read(int(address))[:4] for reader, address in zip(self._readers, addresses, strict=True)]
            return np.array(rows, dtype=np.uint64).reshape(-1, 4)
        exchange = np.empty((len(addresses), 6), dtype=np.uint64)
        exchange[:, 0] = addresses
        self._call(*map(ctypes.c_void_p, (self._plans.ctypes.data, exchange.ctypes.data)), ctypes.c_int64(len(addresses)))
        return exchange[:, :4]


def fingerprint(
    pointer: int, dtype: str, shape: tuple[int, ...], strides_elements: tuple[int, ...], flip: tuple[int, int] = (0, 0)
) -> Digests:
    """Digest the logical bytes of a strided array in host memory.

    Args:
        pointer: Address of element (0, ..., 0); ignored when a length is 0.
        dtype: Torch's name without the prefix, for example "bfloat16".
        shape: Lengths.
        strides_elements: Strides in elements, any sign, 0 included.
        flip: See ``Reader``.

    Raises:
        KeyError: ``dtype`` is not in ``dtypes.ELEMENT_TYPES`` (see ``dtypes.opaque``).

    Cost: 1 us for a small array of a shape seen before, then memory speed; no allocation of the array's size.
    """
    key = (dtype, shape, strides_elements, flip)
    reader = _readers.get(key)
    if reader is None:
        if len(_readers) >= _MAX_READERS:
            _readers.clear()
        reader = _readers[key] = Reader(ELEMENT_TYPES[dtype], shape, strides_elements, flip)
    return reader.read(pointer)


def digests_of_bytes(data: bytes | bytearray | memoryview) -> Digests:
    """Digest a host byte string as an array of uint8.

    Cost: as ``fingerprint``, and one copy of ``data``.
    """
    buffer = ctypes.create_string_buffer(bytes(data), max(len(data), 1))
    return fingerprint(ctypes.addressof(buffer), "uint8", (len(data),), (1,))


def fingerprint_bytes(data: bytes | bytearray | memoryview) -> int:
    """``mix64`` of a host byte string, for example a generator's state."""
    return digests_of_bytes(data).mix64


def _plan(element: ElementType, lengths: tuple[int, ...], steps: tuple[int, ...], flip: tuple[int, int]) -> native.Plan:
    plan = native.Plan(element.widening, element.item_bytes, element.component_bytes, len(lengths), 1)
    for position, (length, step) in enumerate(zip(lengths, steps, strict=True)):
        plan.numel *= length
        plan.shape[position] = length
        plan.strides[position] = step * element.item_bytes
    plan.flip[0], plan.flip[1] = flip
    if element.widening == Widening.TABLE8:
        table = _tables.setdefault(element.name, (ctypes.c_uint32 * 256)(*float8_table(element.name)))
        plan.table = ctypes.addressof(table)
    return plan
