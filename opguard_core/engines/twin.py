"""What the native observer has to know of fingerprints: the compiled CPU twin and how dtypes widen.

``fingerprint/dtypes.py`` stays the only place that says it; the observer gets it once, as plain numbers.
"""

from __future__ import annotations

import ctypes
from importlib import import_module
from typing import Any

import torch

from opguard_core.engines import cells
from opguard_core.fingerprint import cpu, native
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES, FLOAT8, ElementType, Widening, float8_table, opaque
from opguard_core.probe.kinds import Unreadable

_F64, _I64 = 15, 16  # of probe_api.h, beyond ``Widening``


def hand_over(fingerprints: Any) -> str:
    """Configure ``observer.Fingerprints``; without the compiled twin it asks Python for every content.

    Args:
        fingerprints: Not used yet.

    Returns:
        Why there is no compiled twin, "" if there is.
    """
    for element in _elements():
        table = float8_table(element.name) if element.widening == Widening.TABLE8 else ()
        fingerprints.add_element(
            element.name, int(element.widening), _device_widening(element), element.item_bytes, element.num_components, list(table)
        )
    loaded = cpu.implementation()  # stays loaded for good: the module keeps it
    if isinstance(loaded, native.NoNative):
        return loaded.reason
    address = ctypes.cast(loaded.releasing, ctypes.c_void_p).value
    fingerprints.set_function(address, ctypes.sizeof(native.Plan))
    return ""


def launch_cuda(fingerprints: Any) -> Any:
    """Have CUDA tensors digested from C++ if the launch path is there; else Python is asked for each.

    Args:
        fingerprints: ``observer.Fingerprints``.

    Returns:
        The launcher, ``probe.cuda.Launcher``; None if there is none that C++ can call. No device is touched.
    """
    if not torch.version.cuda:
        return None
    launcher = import_module("opguard_core.probe.cuda").prober()
    if isinstance(launcher, Unreadable) or launcher.api is None:
        return None
    launch_with(fingerprints, launcher)
    return launcher


def launch_with(fingerprints: Any, launcher: Any) -> None:
    """Have CUDA tensors digested by the C launch path, called from C++; both sides share its queue of records.

    Args:
        fingerprints: ``observer.Fingerprints``.
        launcher: ``probe.cuda.Launcher``; what Python asks of it goes on, with its records handed on by C++.
    """

    def opens(device: int) -> str:
        problem = launcher.open_device(device)
        return "" if problem is None else str(problem.reason)

    fingerprints.set_open(opens)
    fingerprints.set_launcher(launcher.api, launcher.flags)
    launcher.read_from(fingerprints.take_others)
    cells.wait_with(lambda cell, timeout_s: fingerprints.wait(cell.ticket, timeout_s))


def _elements() -> list[ElementType]:
    """Every dtype of this torch that has a rule; the others are read, or refused, by Python."""
    known = dict(ELEMENT_TYPES)
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        name = str(dtype).removeprefix("torch.")
        if name in known:
            continue
        try:
            known[name] = opaque(name, dtype.itemsize)
        except ValueError:
            continue
    return list(known.values())


def _device_widening(element: ElementType) -> int:
    """As ``cuda/probe_api.h`` numbers it: an 8-bit float by its format, eight bytes by what they are."""
    if element.widening == Widening.TABLE8:
        return int(Widening.TABLE8) + list(FLOAT8).index(element.name)
    if element.widening == Widening.B64 and element.name in ("float64", "complex128"):
        return _F64
    return _I64 if element.name == "int64" else int(element.widening)
