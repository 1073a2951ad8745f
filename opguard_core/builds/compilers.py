"""The system's compilers, and what identifies one."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from pathlib import Path

_VARIABLE = {"c": "CC", "c++": "CXX"}
_COMMANDS = {"c": ("cc", "gcc", "clang"), "c++": ("c++", "g++", "clang++")}


def find_compilers(language: str = "c") -> list[list[str]]:
    """The commands of the system's compilers: ``$CC`` (``$CXX``) if it can be found, then the usual names."""
    try:
        asked = shlex.split(os.environ.get(_VARIABLE[language], ""))
    except ValueError:  # an unbalanced quote
        asked = []
    commands = [asked] if asked else []
    commands += [[name] for name in _COMMANDS[language]]
    return [[found, *rest] for name, *rest in commands if (found := shutil.which(name))]


def none_found(language: str) -> str:
    """Why there is no compiler, in words."""
    names = ", ".join((f"${_VARIABLE[language]}", *_COMMANDS[language]))
    return f"no {language.upper()} compiler: none of {names} is on PATH"


def identity(compiler: list[str]) -> str:
    """What changes when the compiler is another or was updated."""
    path = Path(compiler[0]).resolve()
    facts = path.stat()
    return f"{shlex.join(compiler)} {path} {facts.st_size} {facts.st_mtime_ns}"


def machine() -> str:
    """What ``-march=native`` depends on: a home folder may be shared by machines of different generations."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return f"{platform.machine()} " + next((line for line in lines if line.startswith(("flags", "Features"))), "")
