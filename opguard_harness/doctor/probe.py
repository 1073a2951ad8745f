"""Facts about one Python, told by that Python itself. Standard library only; any CPython from 3.8 can run it.

The harness hands this file's text to ``python -c`` of the training's interpreter and reads one JSON object from its
standard output. Nothing is imported but the standard library, so the probe costs an interpreter start and no more.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and sys.path and sys.path[0] == "":
    del sys.path[0]  # under -c the current folder comes first; a user's json.py must not answer for the standard library's

import importlib.metadata
import importlib.util
import json
import platform

OUR_DISTRIBUTION = "opguard-mcp"
OUR_PACKAGES = ("opguard_harness", "opguard_core")
PACKAGES = ("torch", "numpy", "pyarrow", "orjson")


def version_of(name: str) -> str | None:
    """Version of an importable package, "unknown" without metadata, None when it cannot be imported."""
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def foreign_owners() -> list[dict[str, str]]:
    """Other distributions that installed a package of our name, each with its version and folder."""
    found = []
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if name.lower().replace("_", "-") == OUR_DISTRIBUTION or "opguard" not in name.lower():
            continue
        tops = {str(file).replace("\\", "/").split("/", 1)[0] for file in distribution.files or []}
        if tops & set(OUR_PACKAGES):
            found.append({"name": name, "version": distribution.version, "folder": str(distribution.locate_file(""))})
    return found


def facts() -> dict[str, object]:
    """What the harness needs to know before it starts a training with this interpreter."""
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "executable": sys.executable,
        "prefix": sys.prefix,
        "platform": platform.platform(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "foreign": foreign_owners(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(facts()) + "\n")
