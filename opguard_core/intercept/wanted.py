"""Whether a program is started with the launch shim, and with which: decided by the launcher, before anything of CUDA is loaded."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from opguard_core import builds
from opguard_core.intercept import shim

SWITCH = "OPGUARD_SHIM"  # 0: never; 1: also where no driver is found
SWITCHED_OFF = f"{SWITCH}=0 switched it off"
NAME = "launch_shim"
DRIVER = "libcuda.so.1"
_DRIVER_PLACES = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg")
_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
)
_UNSPEAKABLE = (":", " ")  # LD_PRELOAD separates by them, and knows no escape


class NotPreloaded(NamedTuple):
    """Why a program starts without the shim; goes into the run's manifest."""

    reason: str


def recipe_if_wanted(environment: Mapping[str, str]) -> builds.Recipe | builds.NotBuilt:
    """How the shim is built, if a program with this environment is to have it."""
    switch = environment.get(SWITCH, "")
    if switch == "0":
        return builds.NotBuilt(SWITCHED_OFF)
    if switch != "1" and not driver_here(environment):
        return builds.NotBuilt("no NVIDIA driver here")
    return shim.recipe()


def driver_here(environment: Mapping[str, str]) -> bool:
    """Whether this node has a CUDA driver. Loads nothing."""
    folders = [folder for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return sys.platform.startswith("linux") and (
        any(Path(place).exists() for place in _DRIVER_PLACES) or any(Path(folder, DRIVER).exists() for folder in (*folders, *_FOLDERS))
    )


def preloaded(
    environment: Mapping[str, str], recipe: builds.Recipe | builds.NotBuilt, built: Mapping[str, builds.Built | builds.NotBuilt]
) -> tuple[dict[str, str], NotPreloaded | None]:
    """The environment to start a program in.

    Args:
        environment: As it would be without us.
        recipe: What `recipe_if_wanted` gave.
        built: What came of the recipes, by name.

    Returns:
        (environment, None), or the same environment and why it is the same.
    """
    found = recipe if isinstance(recipe, builds.NotBuilt) else built[NAME]
    if isinstance(found, builds.NotBuilt):
        return dict(environment), NotPreloaded(found.reason)
    if any(sign in str(found.path) for sign in _UNSPEAKABLE):
        return dict(environment), NotPreloaded(f"its path {found.path} has a space or colon, which {shim.PRELOAD} cannot name")
    return {**shim.preloaded(environment, found.path), shim.PATH: str(found.path)}, None
