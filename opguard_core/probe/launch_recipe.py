"""How the launch path's extension module is built. Imports no torch: the launcher asks before the ranks start."""

from __future__ import annotations

import os
from pathlib import Path

from opguard_core.builds import NotBuilt, Recipe, cuda_folder, python_recipe_parts

MODULE = "opguard_launch"
_DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg")


def recipe() -> Recipe | NotBuilt:
    """The recipe of ``cuda/launch.c``, or why there is no use for it here."""
    parts = python_recipe_parts()
    if isinstance(parts, NotBuilt):
        return parts
    folder = cuda_folder()
    return Recipe(
        name=MODULE,
        says="the GPU launch path",
        source=folder / "launch.c",
        headers=tuple(folder / name for name in ("probe_api.h", "plan.h", "driver.h", "delivery.h", "device.h", "copier.h", "submit.h")),
        flags=("-O2", "-std=gnu11", "-D_GNU_SOURCE", "-pthread", *parts.flags),
        libraries=("-ldl",),
        facts=parts.facts,
    )


def recipe_if_needed() -> Recipe | NotBuilt:
    """As ``recipe``, where this machine shows a driver of an NVIDIA card."""
    return recipe() if has_driver() else NotBuilt("no NVIDIA driver on this machine")


def has_driver() -> bool:
    """Whether this machine shows a driver of an NVIDIA card; loads nothing."""
    return "OPGUARD_LIBCUDA" in os.environ or any(Path(name).exists() for name in _DRIVER_FILES)


def driver_path() -> str:
    """Of the CUDA driver's library; ``OPGUARD_LIBCUDA`` names another one."""
    return os.environ.get("OPGUARD_LIBCUDA") or "libcuda.so.1"
