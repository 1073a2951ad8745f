"""Fingerprint of host memory: the compiled twin where there is a compiler, numpy otherwise.

Runs inside the user's process, between their operators: touches no random stream, makes no torch call, writes nothing but its
own build cache, allocates nothing of the tensor's size.
"""

from __future__ import annotations

import ctypes
from typing import Any

from opguard_core.fingerprint import numpy_twin
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES, ElementType, Widening, float8_table
from opguard_core.fingerprint.layout import merge_dimensions
from opguard_core.fingerprint.native import MAX_DIMS, Native, NoNative, Plan, load

# A call that is over within a few microseconds keeps the GIL: giving it up invites a switch to another thread, and getting it
# back can then take a whole switch interval. A longer one lets the user's other threads work.
RELEASE_GIL_BYTES = 1 << 16
_MAX_PLANS = 8192

_Out = ctypes.c_uint64 * 6
_plans: dict[tuple[Any, ...], tuple[Any, Any]] = {}
_tables: dict[str, Any] = {}
_loaded: Native | NoNative | None = None


def implementation() -> Native | NoNative:
    """The compiled twin, built on the first call, or the reason why numpy is used."""
    global _loaded
    if _loaded is None:
        _loaded = load()
    return _loaded


def fingerprint(
    pointer: int, dtype: str, shape: tuple[int, ...], strides_elements: tuple[int, ...], flip: tuple[int, int] = (0, 0)
) -> Digests:
    """Digest the logical bytes of a strided array in host memory.

    Args:
        pointer: Address of element (0, ..., 0); ignored when a length is 0.
        dtype: Torch's name without the prefix, for example "bfloat16".
        shape: Lengths.
        strides_elements: Strides in elements, any sign, 0 included.
        flip: XORed into every 16 logical bytes as two little-endian words (conjugate and negative views).

    Raises:
        KeyError: ``dtype`` is not in ``dtypes.ELEMENT_TYPES`` (see ``dtypes.opaque``).

    Cost: about 2 us a call for a small array with a shape seen before; then memory speed. No allocation of the array's size.
    """
    key = (dtype, shape, strides_elements, flip)
    try:
        call, plan = _plans[key]
    except KeyError:
        call, plan = _prepare(key)
    if call is None:
        return numpy_twin.fingerprint(pointer, ELEMENT_TYPES[dtype], shape, strides_elements, flip)
    out = _Out()
    call(pointer, plan, out)
    mix64, value64, bag64, xor32, trivial, nbytes = out
    return Digests(mix64, value64, bag64, xor32, trivial == 1, nbytes)


def fingerprint_bytes(data: bytes) -> int:
    """``mix64`` of a small host byte string, for example a generator's state."""
    buffer = ctypes.create_string_buffer(data, len(data))
    return fingerprint(ctypes.addressof(buffer), "uint8", (len(data),), (1,)).mix64


def _prepare(key: tuple[Any, ...]) -> tuple[Any, Any]:
    native = implementation()
    dtype, shape, strides, flip = key
    element = ELEMENT_TYPES[dtype]
    lengths, steps = ((0,), (1,)) if 0 in shape else merge_dimensions(shape, strides)
    if isinstance(native, NoNative) or len(lengths) > MAX_DIMS:
        entry: tuple[Any, Any] = (None, None)
    else:
        plan = _plan(element, lengths, steps, flip)
        nbytes = plan.numel * plan.item_bytes
        entry = (native.holding if nbytes < RELEASE_GIL_BYTES else native.releasing, ctypes.byref(plan))
    if len(_plans) >= _MAX_PLANS:
        _plans.clear()
    _plans[key] = entry
    return entry


def _plan(element: ElementType, lengths: tuple[int, ...], steps: tuple[int, ...], flip: tuple[int, int]) -> Plan:
    plan = Plan(element.widening, element.item_bytes, element.component_bytes, len(lengths), 1)
    for position, (length, step) in enumerate(zip(lengths, steps, strict=True)):
        plan.numel *= length
        plan.shape[position] = length
        plan.strides[position] = step * element.item_bytes
    plan.flip[0], plan.flip[1] = flip
    if element.widening == Widening.TABLE8:
        table = _tables.setdefault(element.name, (ctypes.c_uint32 * 256)(*float8_table(element.name)))
        plan.table = ctypes.addressof(table)
    return plan
