"""What capture needs of a training Python, and on which pairs of Python and torch it was tested.

Standard library only: the launcher and the harness say these things before anything else can be imported.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

# Distribution, oldest release that works; the same floors as in pyproject.toml (a test compares them).
DEPENDENCIES = {"numpy": "1.26", "pyarrow": "16", "orjson": "3.10"}
TESTED_PAIRS = (("3.11", "2.13"),)


def install_line(python: str, missing: Iterable[str]) -> str:
    """The exact command that installs what capture needs.

    Args:
        python: Path of the training Python.
        missing: Names out of ``DEPENDENCIES``.
    """
    return shlex.join([python, "-m", "pip", "install", *(f"{name}>={DEPENDENCIES[name]}" for name in missing)])


def untested_pair(python: str, torch: str) -> str:
    """One sentence if capture was never tested on this pair, else "".

    Args:
        python: Version text such as "3.11.7".
        torch: Version text such as "2.13.0+cpu".
    """
    pair = (_major_minor(python), _major_minor(torch))
    if pair in TESTED_PAIRS:
        return ""
    tested = ", ".join(f"Python {one} with torch {other}" for one, other in TESTED_PAIRS)
    return f"Python {python} with torch {torch} is an untested pair; capture is tested on {tested}."


def _major_minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
