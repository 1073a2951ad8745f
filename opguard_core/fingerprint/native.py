"""The compiled CPU twin: has ``fingerprint.c`` (with ``dense.h``) built once per machine and hands out its two entry points.

Sits in the training process below the probe, above ``builds``, which owns the cache. A missing or failing compiler is a reason, not an
error.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from opguard_core import builds

SOURCE = Path(__file__).with_name("fingerprint.c")
MAX_DIMS = 24
_ONE, _MANY = "opguard_fingerprint", "opguard_fingerprint_many"


class Plan(ctypes.Structure):
    """Mirrors ``Plan`` in ``dense.h``; strides in bytes."""

    _fields_ = (
        ("widening", ctypes.c_int32),
        ("item_bytes", ctypes.c_int32),
        ("component_bytes", ctypes.c_int32),
        ("num_dims", ctypes.c_int32),
        ("numel", ctypes.c_int64),
        ("flip", ctypes.c_uint64 * 2),
        ("table", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * MAX_DIMS),
        ("strides", ctypes.c_int64 * MAX_DIMS),
    )


class Native(NamedTuple):
    """The loaded library. ``holding`` keeps the GIL during the call, ``releasing`` lets other Python threads run.

    ``many``: of several arrays in one call.
    """

    holding: Any
    releasing: Any
    holding_many: Any
    releasing_many: Any
    path: Path
    compiler: str
    flags: tuple[str, ...]


class NoNative(NamedTuple):
    """Why there is no compiled twin; goes into the manifest."""

    reason: str


def recipe() -> builds.Recipe:
    """How the library is built."""
    return builds.Recipe(
        name="fingerprint",
        says="the compiled fingerprint",
        source=SOURCE,
        headers=(SOURCE.with_name("dense.h"),),
        flags=("-O3", "-std=gnu11", "-fno-math-errno"),
        tunings=(("-march=native",), ()),
    )


def load() -> Native | NoNative:
    """Build if needed and load. Never raises for want of a compiler, a folder or a working build.

    Cost: about 0.1 ms when built before; a second of compiling, in a child process, when not.
    """
    if sys.byteorder != "little" or os.name != "posix":
        return NoNative(f"the compiled fingerprint is for little-endian POSIX hosts; this is {os.name}, {sys.byteorder}-endian")
    found = builds.obtain(recipe(), open_library)
    return NoNative(found.reason) if isinstance(found, builds.NotBuilt) else loaded(found)


def loaded(found: builds.Built) -> Native:
    """What a build that ``open_library`` opened has to offer."""
    holding, releasing = found.opened
    one, many = ((getattr(holding, name), getattr(releasing, name)) for name in (_ONE, _MANY))
    return Native(*one, *many, found.path, found.compiler, found.flags)


def open_library(path: Path) -> tuple[ctypes.PyDLL, ctypes.CDLL]:
    """The library, called with and without the GIL.

    Raises:
        OSError: It is no library, or of another version.
    """
    holding, releasing = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
    if holding.opguard_fingerprint_plan_bytes() != ctypes.sizeof(Plan):
        raise OSError(f"{path} lays its plan out differently from this version")
    for library in (holding, releasing):  # no argtypes: the arguments are ctypes objects already, and checking them costs 0.2 us
        for name in (_ONE, _MANY):
            getattr(library, name).restype = None
    return holding, releasing
