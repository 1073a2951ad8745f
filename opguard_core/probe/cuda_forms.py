"""How views and records lie in memory: ``og_view`` and ``og_record`` of ``cuda/probe_api.h``."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import FLOAT8, ElementType, Widening
from opguard_core.probe.asking import Layout, Layouts

MAX_DIMS = 24
TRIVIAL, HAS_STATISTICS, IS_LOST = 1, 2, 4  # flags of a record
_FLOAT8, _F64, _I64 = 10, 15, 16  # widenings that probe_api.h has beyond ``Widening``
_FLOAT8_FORMATS = tuple(FLOAT8)
_LONG = ("ticket", "occurrence", "mix64", "value64", "bag64", "xor64", "t_device_ns", "nan_count", "inf_count")
WORDS = slice(2, 6)  # mix64 to xor64, in words of 8 bytes
RECORD = np.dtype(
    [
        *((name, "<u8") for name in _LONG),
        ("max_abs", "<f4"),
        *((name, "<u4") for name in ("flags", "region", "is_captured")),
    ]
)


class Statistics(NamedTuple):
    """What the same pass counted: NaN and infinite elements, and max |x| over what is not NaN (as a float32)."""

    nan_count: int
    inf_count: int
    max_abs: float


class Delivered(NamedTuple):
    """One record.

    Attributes:
        ticket: As ``submit`` gave it.
        occurrence: 0, then 1, 2, ... for further replays of the CUDA graph that holds the launch.
        digests: None if lost.
        t_device_ns: The device's ``%globaltimer``.
        lost: It will not come.
        statistics: None unless asked for.
        region: 0 for the whole tensor, else 1 to 64.
    """

    ticket: int
    occurrence: int
    digests: Digests | None
    t_device_ns: int
    lost: bool
    statistics: Statistics | None
    region: int


class ViewForm(ctypes.Structure):
    """``og_view`` of probe_api.h."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("numel", ctypes.c_int64),
        ("widening", ctypes.c_int32),
        ("item_bytes", ctypes.c_int32),
        ("component_bytes", ctypes.c_int32),
        ("num_dims", ctypes.c_int32),
        ("flip", ctypes.c_uint64 * 2),
        ("sizes", ctypes.c_int64 * MAX_DIMS),
        ("strides", ctypes.c_int64 * MAX_DIMS),
    )


def prepare(layout: Layout) -> bytes:
    """The view of a layout but for its address, kept with it; empty if it has too many dimensions."""
    element, num_dims = layout.element, len(layout.lengths)
    if num_dims > MAX_DIMS:
        layout.prepared = b""
        return b""
    form = ViewForm(0, layout.numel, _widening(element), element.item_bytes, element.component_bytes, num_dims)
    form.flip[0], form.flip[1] = layout.flip
    for place, (length, step) in enumerate(zip(layout.lengths, layout.steps, strict=True)):
        form.sizes[place], form.strides[place] = length, step * element.item_bytes
    layout.prepared = bytes(form)
    return layout.prepared


def prepare_all(layouts: Layouts) -> Any:
    """Views of layouts, a row of words each, of which the first is to be the address; False if one has too many dimensions."""
    forms = [layout.prepared or prepare(layout) for layout in layouts.each]
    return np.frombuffer(bytearray(b"".join(forms)), dtype=np.uint64).reshape(len(forms), -1) if all(forms) else False


def _widening(element: ElementType) -> int:
    """As probe_api.h numbers it."""
    if element.widening == Widening.TABLE8:
        return _FLOAT8 + _FLOAT8_FORMATS.index(element.name)
    if element.widening == Widening.B64 and element.name in ("float64", "complex128"):
        return _F64
    return _I64 if element.name == "int64" else int(element.widening)
