"""Files that ship beside the code: examples and prompts. In a wheel they are package data, in a checkout top-level folders."""

from __future__ import annotations

from pathlib import Path

from opguard_core.errors import DependencyMissing

_PACKAGE = Path(__file__).resolve().parent


def shipped_folder(name: str) -> Path:
    """The folder ``examples`` or ``prompts``.

    Raises:
        DependencyMissing: The installation lacks it.
    """
    for folder in (_PACKAGE / f"_{name}", _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise DependencyMissing(f"This installation has no {name} folder.", hint="Install opguard-mcp again.")
