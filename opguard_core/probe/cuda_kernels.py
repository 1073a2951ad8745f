"""The fingerprint kernels of one device, loaded by CuPy and handed over as addresses (CUfunction); see ``kernel_build``."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any, NamedTuple

import torch

from opguard_core import builds
from opguard_core.probe import kernel_build
from opguard_core.probe.kernel_build import KERNELS, NO_ELEMENTS, NO_VALUE64, REGIONS_SHIFT, STATISTICS, variant_of
from opguard_core.probe.kinds import Unreadable

__all__ = ["KERNELS", "NO_ELEMENTS", "NO_VALUE64", "REGIONS_SHIFT", "STATISTICS", "Kernels", "kernels", "variant_of"]

_lock = threading.RLock()
_loaded: dict[tuple[int, str], Kernels | Unreadable] = {}


class Kernels(NamedTuple):
    """Handles in the order of ``KERNELS``, which is that of ``OG_KERNELS`` in plan.h; 0 for other variants.

    Attributes:
        handles: Valid while ``module`` lives.
        module: CuPy's, kept alive.
        arch: What they were compiled for, for example "sm_90".
        compiler: What compiled them, with its version.
    """

    handles: tuple[int, ...]
    module: Any
    arch: str
    compiler: str


def kernels(device: int, variant: str) -> Kernels | Unreadable:
    """One variant for a device, compiled on the first call on this machine, loaded on the first call in this process.

    Cost: see ``kernel_build.cubin``; loading takes some milliseconds once per device and may wait for it.
    """
    with _lock:
        found = _loaded.get((device, variant))
        if found is None:
            found = _loaded[device, variant] = _load(device, variant)
        return found


def _load(device: int, variant: str) -> Kernels | Unreadable:
    try:
        cupy = import_module("cupy")
        major, minor = torch.cuda.get_device_capability(device)
        arch = f"sm_{major}{minor}"
        cubin = kernel_build.cubin(arch, variant)
        if isinstance(cubin, builds.NotBuilt):
            return Unreadable(f"the kernels could not be compiled: {cubin.reason}")
        module = cupy.cuda.function.Module()
        with cupy.cuda.Device(device):
            module.load(cubin)
            handles = tuple(int(module.get_function(name).ptr) if name.startswith(f"{variant}_") else 0 for name in KERNELS)
    except ImportError as error:
        return Unreadable(f"CuPy cannot be used: {error}")
    except (OSError, RuntimeError) as error:  # CuPy's and torch's errors are RuntimeErrors
        return Unreadable(f"the kernels could not be loaded on device {device}: {str(error).splitlines()[0]}")
    return Kernels(handles, module, arch, kernel_build.compiler())
