"""Kernel names as people use them: `vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>` instead of 90 mangled characters.

The name as it was recorded stays evidence; two kernels are the same if that is.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from opguard_core.certify.devicework.mangled import Name, Reader, Unreadable
from opguard_core.ids import Work

SHORT_CHARS = 120
UNNAMED = "a kernel without a name"
_MARK_CHARS = 4

# What each launch of an elementwise kernel carries and what says nothing about what it computes.
_NOISE = ("array<", "TrivialOffsetCalculator<", "OffsetCalculator<", "LoadWithoutCast", "StoreWithoutCast", "integral_constant<")
_WRAPPERS = frozenset({"Kernel", "Kernel2", "device_kernel"})  # of CUTLASS: their one argument is the kernel
_IDENTIFIER = re.compile(r"(\d+)")
_INNERMOST = re.compile(r"<(?:[^<>]|<\.\.>)*>")
REPLAYED = " (replayed)"
_NOT_NAMED = {str(Work.COPY): "copy", str(Work.FILL): "fill", str(Work.GRAPH): "graph replay"}


@lru_cache(maxsize=16_384)
def short_name(mangled: str, limit: int = SHORT_CHARS) -> str:
    """A kernel's name in its short form.

    Args:
        mangled: As recorded; a name that is not mangled (of cuBLAS, Triton, Inductor) stays as it is.
        limit: Most characters; template arguments are cut first, from the innermost.

    Cost: about 50 us for a new name.
    """
    if not mangled.startswith("_Z"):
        return _cut(mangled or UNNAMED, limit)
    reader = Reader(mangled)
    try:
        return _cut(_told(reader.kernel()), limit)
    except (Unreadable, IndexError, ValueError):
        known = reader.name.base if reader.name is not None else _last_identifier(mangled)
        return _cut(f"{known}<...>" if known else mangled, limit)


def work_name(kind: str, kernel: str, limit: int = SHORT_CHARS) -> str:
    """A piece of device work in a few words.

    Args:
        kind: One of ``ids.Work``.
        kernel: Its recorded name, "" where it has none.
        limit: As `short_name`.
    """
    if kind in _NOT_NAMED and not kernel:
        return _NOT_NAMED[kind]
    return short_name(kernel, limit - len(REPLAYED)) + REPLAYED if kind == Work.GRAPH else short_name(kernel, limit)


def told_apart(works: Iterable[tuple[str, str]], limit: int = SHORT_CHARS) -> dict[tuple[str, str], str]:
    """Short names of several pieces of work; those that would read alike and are not get a mark of their recorded name.

    Args:
        works: (kind, recorded name) of each.
        limit: As `short_name`.
    """
    distinct = list(dict.fromkeys(works))
    names = {work: work_name(*work, limit) for work in distinct}
    times = Counter(names.values())
    return {work: f"{name} #{_mark(work[1])}" if times[name] > 1 else name for work, name in names.items()}


def without_numbers(names: Mapping[str, int]) -> dict[str, int]:
    """Kernels by name with every number in it left out: those of one family with another tile or vector width are then the same."""
    found: dict[str, int] = {}
    for name, count in names.items():
        family = re.sub(r"\d+", "#", name)
        found[family] = found.get(family, 0) + count
    return found


def _mark(mangled: str) -> str:
    return hashlib.sha256(mangled.encode("utf-8", "backslashreplace")).hexdigest()[:_MARK_CHARS]


def _told(name: Name) -> str:
    if name.args is None:
        return str(name)
    if name.base in _WRAPPERS and len(name.args) == 1:
        return name.args[0]
    kept = [arg for arg in name.args if not arg.startswith(_NOISE)]
    return str(Name(name.base, kept or None, name.outer))


def _cut(name: str, limit: int) -> str:
    """At most so many characters; the innermost template arguments go first."""
    while len(name) > limit:
        inner = [
            (_depth(name, found.start()), found.end() - found.start(), found)
            for found in _INNERMOST.finditer(name)
            if len(found.group()) > 4
        ]
        if not inner or max(entry[0] for entry in inner) == 0:
            return f"{name[: limit - 3]}..."
        deepest = max(inner, key=lambda entry: entry[:2])[2]
        name = f"{name[: deepest.start()]}<..>{name[deepest.end() :]}"
    return name


def _depth(name: str, at: int) -> int:
    return name.count("<", 0, at) - name.count(">", 0, at)


def _last_identifier(mangled: str) -> str:
    """The last part of the nested name that a mangled name begins with, read by its lengths alone; "" if there is none."""
    at, found = (3 if mangled.startswith("_ZN") else 2), ""
    while (length := _IDENTIFIER.match(mangled, at)) is not None:
        end = length.end() + int(length.group()[:4])
        found, at = mangled[length.end() : end], end
    return found
