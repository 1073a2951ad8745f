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
import sysconfig
from pathlib import Path

OUR_DISTRIBUTION = "opguard-mcp"
OUR_PACKAGES = ("opguard_harness", "opguard_core")
PACKAGES = ("torch", "numpy", "pyarrow", "orjson")
CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy")


def version_of(name: str) -> str | None:
    """Version of an importable package, "unknown" without metadata, None when it cannot be imported."""
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def builds() -> dict[str, object]:
    """What this interpreter has for building our compiled parts: headers of its own and of torch, and CuPy for kernels of a card."""
    torch = importlib.util.find_spec("torch")
    folder = Path(torch.origin).parent if torch is not None and torch.origin else None
    return {
        "python_headers": Path(sysconfig.get_path("include"), "Python.h").is_file(),
        "torch_headers": folder is not None and (folder / "include" / "ATen" / "ATen.h").is_file(),
        "cupy": _cupy(),
        "stays_compiled": _stays_compiled(folder),
    }


def _stays_compiled(torch: Path | None) -> bool | None:
    """Whether compiled code stays compiled while a dispatch mode looks; None where there is no torch."""
    if torch is None:
        return None
    try:
        return "def ignore_compile_internals" in (torch / "utils" / "_python_dispatch.py").read_text("utf-8")
    except OSError:
        return False


def _cupy() -> str | None:
    for name in CUPY:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


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
        "builds": builds(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(facts()) + "\n")
