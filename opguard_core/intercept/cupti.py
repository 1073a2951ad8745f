"""An opt-in second source of kernels: our own subscriber of CUPTI, which tells what ran, how long, and inside which graphs.

``OPGUARD_CUPTI=1`` asks for it. CUPTI takes one subscriber at a time, and torch.profiler is one from its first use on: so it is refused
where somebody holds CUPTI, and let go of before the program's own profiler starts, which then finds it free. It costs microseconds a
launch (the shim: a fraction of one) and some megabytes of device memory that CUPTI takes for its records.

What it cannot see: kernels before the card was first used by torch or after a profiler began, and copies and fills.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from opguard_core import builds

SWITCH = "OPGUARD_CUPTI"
LIBRARIES = ("libcupti.so.13",)  # of versions whose records are known
VERSION = 1
MAX_NAMED = 64  # kernels of graphs that the manifest names, the most frequent first
MAX_TIMES = 2000
PROFILER = "torch.profiler was started and is CUPTI's client since; what ran before is counted"
_OWN = "og_"  # how kernels of the fingerprint begin
_MAX_KERNELS = 8192
_TEXT_BYTES = 256


class Kernel(ctypes.Structure):
    """Mirrors ``kernel`` in ``cupti_records.c``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("count", ctypes.c_uint64),
        ("timed", ctypes.c_uint64),
        ("ns", ctypes.c_uint64),
        ("attributed", ctypes.c_uint64),
        ("attributed_timed", ctypes.c_uint64),
        ("attributed_ns", ctypes.c_uint64),
        ("in_graphs", ctypes.c_uint64),
    )


class Refused(NamedTuple):
    """Why CUPTI is not subscribed to, though that was asked for; goes into the manifest."""

    reason: str

    def report(self) -> dict[str, Any]:
        """What the manifest says."""
        return {"active": False, "reason": self.reason}


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether somebody asks for it."""
    return environment.get(SWITCH) == "1"


def recipe_if_wanted(environment: Mapping[str, str]) -> builds.Recipe | builds.NotBuilt:
    """How the subscriber is built, if a program with this environment is to have it."""
    if not wanted(environment):
        return builds.NotBuilt(f"{SWITCH}=1 does not ask for it")
    if not sys.platform.startswith("linux"):
        return builds.NotBuilt(f"CUPTI is used on Linux; this is {sys.platform}")
    return builds.Recipe(
        name="cupti_records",
        says="the CUPTI subscriber",
        source=builds.cuda_folder() / "cupti_records.c",
        flags=("-O2", "-std=gnu11", "-fvisibility=hidden", "-pthread"),
        libraries=("-ldl",),
    )


class Subscriber:
    """CUPTI's one subscriber, if it can be.

    Args:
        library: The built subscriber.
        libraries: Names of libcupti, to be found among what is loaded.
    """

    def __init__(self, library: ctypes.CDLL, libraries: tuple[str, ...] = LIBRARIES) -> None:
        library.opguard_cupti_begin.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
        library.opguard_cupti_kernels.argtypes = (ctypes.c_void_p, ctypes.c_int)
        self._library, self._names = library, libraries
        self._began = self._over = False
        self.reason = "the program used no card"
        self._restore: Callable[[], None] | None = None

    def begin_with_the_card(self) -> None:
        """Begin as soon as torch has initialised CUDA: before, CUPTI would initialise the driver in a program that may yet fork."""
        import torch

        torch.cuda._lazy_call(self.begin)

    def begin(self) -> bool:
        """Subscribe; False with the reason in ``reason``. Never raises: it runs inside torch's initialisation."""
        if self._began or self._over:
            return self._began
        if os.environ.get("KINETO_USE_DAEMON"):
            self.reason = "KINETO_USE_DAEMON lets torch's profiler be started from outside at any time"
            return False
        why = ctypes.create_string_buffer(_TEXT_BYTES)
        for name in self._names:
            if self._library.opguard_cupti_begin(name.encode(), why, _TEXT_BYTES):
                self._began, self.reason = True, ""
                self._restore = _before_profiler(lambda: self.end(PROFILER))
                return True
            self.reason = why.value.decode("utf-8", "replace")
        return False

    def end(self, reason: str = "") -> None:
        """Let go of CUPTI; a second call does nothing. Takes the kernels that still run as counted, without their times."""
        if self._over:
            return
        self._over = True
        if self._began:
            self._library.opguard_cupti_end()
            self.reason = reason
        if self._restore is not None:
            self._restore()
            self._restore = None

    def kernels(self) -> list[Kernel]:
        """What ran so far, as far as its records came back, the fingerprint's own left out."""
        rows = (Kernel * _MAX_KERNELS)()
        count = self._library.opguard_cupti_kernels(rows, _MAX_KERNELS)
        return [row for row in rows[:count] if not (row.name or b"").startswith(_OWN.encode())]

    def report(self) -> dict[str, Any]:
        """What the manifest says: kernels that ran, how many of them had a boundary in flight when submitted, and those of graphs.

        ``dropped``: records that CUPTI lost; ``unplaced``: kernels whose launch was not found any more; ``unnamed``: without room.
        """
        if not self._began:
            return Refused(self.reason).report()
        rows = self.kernels()
        counts = (ctypes.c_uint64 * 3)()
        self._library.opguard_cupti_counts(counts)
        totals = {name: sum(getattr(row, name) for row in rows) for name in ("count", "attributed", "ns", "attributed_ns", "in_graphs")}
        in_graphs = sorted(((_name(row), row.in_graphs) for row in rows if row.in_graphs), key=lambda one: (-one[1], one[0]))
        report: dict[str, Any] = {
            "active": True,
            "kernels": totals["count"],
            "attributed": totals["attributed"],
            "device_ns": totals["ns"],
            "attributed_ns": totals["attributed_ns"],
            "in_graphs": totals["in_graphs"],
            "graph_kernels": dict(in_graphs[:MAX_NAMED]),
            **dict(zip(("dropped", "unplaced", "unnamed"), counts, strict=True)),
        }
        return {**report, "reason": self.reason} if self.reason else report

    def times(self) -> dict[str, Any]:
        """Mean time of each kernel by its recorded name, as a preflight's profile tells it."""
        rows = sorted(self.kernels(), key=lambda row: (-int(row.ns), _name(row))) if self._began else []
        return {_name(row): {"count": row.timed, "mean_ns": row.ns / row.timed} for row in rows[:MAX_TIMES] if row.timed}


def obtain(environment: Mapping[str, str]) -> Subscriber | Refused | None:
    """The subscriber, not begun yet; why there is none; None if nobody asked."""
    if not wanted(environment):
        return None
    recipe = recipe_if_wanted(environment)
    built = recipe if isinstance(recipe, builds.NotBuilt) else builds.obtain(recipe)
    if isinstance(built, builds.NotBuilt):
        return Refused(built.reason)
    try:
        library = ctypes.CDLL(str(built.path))
        row_bytes = library.opguard_cupti_kernel_bytes
    except (OSError, AttributeError) as error:
        return Refused(f"the built subscriber cannot be loaded: {error}")
    row_bytes.restype = ctypes.c_size_t
    if library.opguard_cupti_version() != VERSION or row_bytes() != ctypes.sizeof(Kernel):
        return Refused("the built subscriber is of another version")
    return Subscriber(library)


def _name(row: Kernel) -> str:
    return (row.name or b"").decode("utf-8", "backslashreplace")


def _before_profiler(then: Callable[[], None]) -> Callable[[], None] | None:
    """Have ``then`` called before torch's profiler first reaches for CUPTI; returns what takes that back."""
    profiler: Any = sys.modules.get("torch.autograd.profiler")
    original = getattr(profiler, "_prepare_profiler", None)
    if original is None:
        return None

    def _prepare_profiler(*args: Any, **kwargs: Any) -> Any:
        then()
        return original(*args, **kwargs)

    def restore() -> None:
        if profiler._prepare_profiler is _prepare_profiler:
            profiler._prepare_profiler = original

    profiler._prepare_profiler = _prepare_profiler
    return restore


__all__ = ["SWITCH", "Refused", "Subscriber", "obtain", "recipe_if_wanted", "wanted"]
