"""Builds the extension of the tests, once a machine, into the cache of built parts."""

from __future__ import annotations

import functools
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from opguard_core import builds

NAME = "outside_extension"


@functools.cache
def extension() -> Any:
    """The extension module, and the path of its file as ``__file__``."""
    parts = builds.python_recipe_parts()
    if isinstance(parts, builds.NotBuilt):
        pytest.skip(f"an extension cannot be built here: {parts.reason}")
    recipe = builds.Recipe(
        name=NAME, source=Path(__file__).with_name("extension.c"), flags=("-O1", "-fvisibility=hidden", *parts.flags), facts=parts.facts
    )
    built = builds.obtain(recipe, open_with=partial(builds.load_extension, NAME))
    if isinstance(built, builds.NotBuilt):
        pytest.skip(f"an extension cannot be built here: {built.reason}")
    return built.opened
