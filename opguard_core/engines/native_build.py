"""The compiled part of the native observer: how it is built, and the loaded module or the reason why there is none.

Built on first use with the system's C++ compiler against the headers in the torch wheel (no nvcc); a launcher builds it before the ranks
start. It is for one torch and one interpreter: either's change builds it anew.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from opguard_core import builds
from opguard_core.ids import SENTINEL
from opguard_core.plan.config import AUTO, NATIVE

NAME = "opguard_observer"
FOLDER = Path(__file__).with_name("observer")
NO_CARD = "no NVIDIA card here, and building the native engine takes a minute: `--engine native` asks for it"
_DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg")  # of NVIDIA's driver on Linux, and below WSL
BUILD_SECONDS = 600.0  # half a minute alone on one core; ranks of many jobs may share it
_CUDA_SOURCES = (Path(__file__).parents[1] / "cuda", Path(__file__).parents[2] / "cuda")  # package data, or the repository's root


class Loaded(NamedTuple):
    """The module, and what a manifest says of its build."""

    module: ModuleType
    compiler: str
    flags: tuple[str, ...]


class Missing(NamedTuple):
    """Why there is no native observer; goes into the manifest."""

    reason: str


_found: Loaded | Missing | None = None


def recipe() -> builds.Recipe | builds.NotBuilt:
    """How the module is built, or why it cannot be. Does not import torch."""
    parts = builds.torch_recipe_parts()
    if isinstance(parts, builds.NotBuilt):
        return parts
    spec = importlib.util.find_spec("torch")
    cuda = next((folder for folder in _CUDA_SOURCES if (folder / "probe_api.h").is_file()), None)
    if spec is None or spec.origin is None or cuda is None:
        return builds.NotBuilt("the headers of the observer are not complete")
    libraries = Path(spec.origin).parent / "lib"
    return builds.Recipe(
        name=NAME,
        says="the native observer",
        source=FOLDER / "module.cpp",
        headers=(*sorted(FOLDER.glob("*.h")), *sorted(cuda.glob("*.h"))),
        language="c++",
        flags=("-O2", "-g0", "-fvisibility=hidden", f"-DTORCH_EXTENSION_NAME={NAME}", *_system(parts.flags), f"-I{FOLDER}", f"-I{cuda}"),
        libraries=(f"-L{libraries}", "-ltorch_python", "-ltorch_cpu", "-lc10"),
        tunings=(("-std=c++20",), ("-std=c++17",)),
        facts=parts.facts,
        seconds=BUILD_SECONDS,
    )


def recipe_if_needed(engine: str, mode: str) -> builds.Recipe | builds.NotBuilt:
    """As `recipe`, for a launcher: nothing to build where the dispatch engine will observe, or nobody.

    Args:
        engine: One of ``plan.config.ENGINES``.
        mode: One of ``ids.MODES``.
    """
    if mode == SENTINEL:
        return builds.NotBuilt("mode sentinel looks at no operator")
    if engine == NATIVE or (engine == AUTO and card_here()):
        return recipe()
    return builds.NotBuilt(NO_CARD if engine == AUTO else "the native engine was not asked for")


def card_here() -> bool:
    """Whether this machine shows a driver of an NVIDIA card: there Python's time per operator is most of a step's cost."""
    return any(Path(name).exists() for name in _DRIVER_FILES)


def _system(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Other people's headers give no warnings."""
    return tuple(f"-isystem{flag[2:]}" if flag.startswith("-I") else flag for flag in flags)


def load() -> Loaded | Missing:
    """The module, built if needed; the same answer for the whole process. Imports torch, whose libraries it is linked against.

    Cost: some ms when built before; else half a minute of compiling or more, in a child process, once per machine.
    """
    global _found
    if _found is None:
        _found = _load()
    return _found


def _load() -> Loaded | Missing:
    if sys.byteorder != "little" or os.name != "posix":
        return Missing(f"the native observer is for little-endian POSIX hosts; this is {os.name}, {sys.byteorder}-endian")
    wanted = recipe()
    if not isinstance(wanted, builds.NotBuilt):
        importlib.import_module("torch")
    found = wanted if isinstance(wanted, builds.NotBuilt) else builds.obtain(wanted, lambda path: builds.load_extension(NAME, path))
    if isinstance(found, builds.NotBuilt):
        return Missing(found.reason)
    try:
        found.opened.register_observer()
    except RuntimeError as error:
        return Missing(f"torch takes no kernel of ours on its dispatch key Fake: {str(error).splitlines()[0]}")
    return Loaded(found.opened, found.compiler, found.flags)
