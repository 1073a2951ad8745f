"""Storages and probes of the native observer, built by themselves, with a device and a launcher that a test plays."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from opguard_core.builds import Built, NotBuilt, Recipe, load_extension, obtain, torch_recipe_parts

_NAME = "opguard_observer_probes"
_ROOT = Path(__file__).resolve().parents[3]
_HEADERS = _ROOT / "opguard_core" / "engines" / "observer"
_CUDA = _ROOT / "cuda"


@cache
def load() -> ModuleType | str:
    """The module, or the reason why it cannot be built here."""
    parts = torch_recipe_parts()
    if isinstance(parts, NotBuilt):
        return parts.reason
    recipe = Recipe(
        _NAME,
        Path(__file__).with_name("probes.cpp"),
        headers=(*sorted(_HEADERS.glob("*.h")), _CUDA / "probe_api.h"),
        language="c++",
        flags=(
            "-Dopguard=opguard_probes",  # types of a name of their own: the engine itself may be loaded beside this module
            "-std=c++17",
            "-O1",
            "-fvisibility=hidden",
            f"-I{_HEADERS}",
            f"-I{_CUDA}",
            f"-DTORCH_EXTENSION_NAME={_NAME}",
            *(f"-isystem{flag[2:]}" if flag.startswith("-I") else flag for flag in parts.flags),
        ),
        libraries=(f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10"),
        facts=parts.facts,
        says="storages and probes of the observer",
        seconds=600.0,
    )
    answer = obtain(recipe, lambda path: load_extension(_NAME, path))
    return answer.opened if isinstance(answer, Built) else answer.reason
