"""Parts of the native observer, built by themselves for tests that drive them without a training."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from opguard_core.builds import Built, NotBuilt, Recipe, load_extension, obtain, torch_recipe_parts

_NAME = "opguard_observer_parts"
_ROOT = Path(__file__).resolve().parents[3]
_HEADERS = _ROOT / "opguard_core" / "engines" / "observer"
_CUDA = _ROOT / "cuda"
_USED = ("texts", "cells", "rows", "outbox", "outbox_python", "drain", "lanes", "lanes_python", "phases", "frames", "places")


@cache
def load(*defines: str) -> ModuleType | str:
    """The module, or the reason why it cannot be built here."""
    parts = torch_recipe_parts()
    if isinstance(parts, NotBuilt):
        return parts.reason
    recipe = Recipe(
        _NAME,
        Path(__file__).with_name("parts.cpp"),
        headers=(*(_HEADERS / f"{name}.h" for name in _USED), _CUDA / "probe_api.h"),
        language="c++",
        flags=(
            "-Dopguard=opguard_parts",  # types of a name of their own: the engine itself may be loaded beside this module
            "-std=c++20",
            "-O0",
            "-fvisibility=hidden",
            f"-I{_HEADERS}",
            f"-I{_CUDA}",
            f"-DTORCH_EXTENSION_NAME={_NAME}",
            *defines,
            *parts.flags,
        ),
        libraries=(f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10"),
        facts=parts.facts,
        says="parts of the observer",
        seconds=600.0,
    )
    answer = obtain(recipe, lambda path: load_extension(_NAME, path))
    return answer.opened if isinstance(answer, Built) else answer.reason
