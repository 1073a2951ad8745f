"""Flags and facts of parts that include the interpreter's or torch's headers, found without importing torch.

The launcher builds before the ranks start and must not spend seconds on importing torch for it.
"""

from __future__ import annotations

import importlib.util
import mmap
import re
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from opguard_core.builds.recipe import NotBuilt


class Parts(NamedTuple):
    """What to add to a recipe's ``flags`` and ``facts``."""

    flags: tuple[str, ...]
    facts: tuple[str, ...]


def python_recipe_parts() -> Parts | NotBuilt:
    """For an extension module of this interpreter."""
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        return NotBuilt(f"no Python.h in {include}: the interpreter came without its headers (a package named python3-dev has them)")
    abi = f"{sys.implementation.cache_tag} {sysconfig.get_config_var('SOABI')} {sys.hexversion:#x}"
    return Parts((f"-I{include}",), (abi,))


def torch_recipe_parts() -> Parts | NotBuilt:
    """For an extension module that includes torch's headers: the interpreter's parts and torch's own.

    The symbols of torch's libraries are left open: the module is loaded into a process that has imported torch.
    """
    python = python_recipe_parts()
    if isinstance(python, NotBuilt):
        return python
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return NotBuilt("torch is not installed")
    folder = Path(spec.origin).parent
    include = folder / "include"
    if not (include / "ATen" / "ATen.h").is_file():
        return NotBuilt(f"no ATen headers in {include}: this torch came without them")
    try:
        version = _torch_version(folder)
        abi = _new_strings(folder / "lib" / "libc10.so")
    except (OSError, ValueError) as error:
        return NotBuilt(f"torch in {folder} cannot be identified: {error}")
    flags = (f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}", f"-D_GLIBCXX_USE_CXX11_ABI={int(abi)}")
    return Parts((*flags, *python.flags), (*python.facts, version))


def _torch_version(folder: Path) -> str:
    """Version and commit, as torch states them."""
    text = (folder / "version.py").read_text(encoding="utf-8")
    found = re.findall(r"^(__version__|git_version|cuda|hip)\b[^=]*=\s*(.+)$", text, re.MULTILINE)
    if not found:
        raise ValueError("version.py states no version")
    return "torch " + " ".join(f"{name}={value.strip()}" for name, value in found)


def _new_strings(library: Path) -> bool:
    """Whether torch was built with the newer ABI of std::string, which its own exported names tell."""
    with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"NSt7__cxx1112basic_string") >= 0
