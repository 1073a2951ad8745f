"""One step under torch's own profiler: how long each kernel takes, and whether the shim sees the kernels that the profiler sees.

The profiler is the process's one client of CUPTI (a second one is refused by it, or blinds it), so it is used as it is, for a step that
nobody observes otherwise, and left alone where the program uses it itself. Needs a card: elsewhere there is nothing to measure.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from opguard_core.intercept.joined import MAX_NAMED
from opguard_core.intercept.shim import ALL, OFF, NotAttached, Shim, attached

MAX_KERNELS = 2000
_NO_KERNELS = ("Memcpy", "Memset", "ProfilerStep", "Context Sync", "Event Sync", "Stream Sync", "Stream Wait")


class Kernel(NamedTuple):
    """One kernel that ran: name as the profiler writes it, nanoseconds."""

    name: str
    duration_ns: int


class ProfiledStep:
    """The profiler around one step; `begin` and `end` are called on the thread that trains."""

    def __init__(self) -> None:
        self._profile: Any = None
        self._shim: Shim | None = None
        self.why_not = ""

    def begin(self) -> bool:
        """Start; False if it cannot be, with the reason in ``why_not``."""
        if not torch.cuda.is_initialized():
            self.why_not = "the program uses no card"
            return False
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        profile = torch.profiler.profile(activities=activities)
        try:
            profile.start()
        except RuntimeError as error:
            self.why_not = f"torch.profiler could not be started: {error}"
            return False
        self._profile = profile
        found = attached()
        if not isinstance(found, NotAttached):
            self._shim = found
            found.take_raw()
            found.enable(ALL)
        return True

    def end(self) -> dict[str, Any]:
        """Stop; what was found, in plain form: ``kernel_times`` by recorded name, and ``kernel_check``.

        Waits for the device: the profiler does.
        """
        launches = []
        if self._shim is not None:
            self._shim.enable(OFF)
            launches = [(one.kind, one.name) for one in self._shim.take()]
        self._profile.stop()
        kernels = [
            Kernel(event.name(), event.duration_ns())
            for event in self._profile.profiler.kineto_results.events()
            if event.device_type() == torch.autograd.DeviceType.CUDA and is_kernel(event)
        ]
        self._profile = None
        return told(kernels, None if self._shim is None else launches)


def is_kernel(event: Any) -> bool:
    """Whether an event on the device's line is a kernel: ranges of the program stand there, too."""
    is_range = getattr(event, "is_user_annotation", None)  # since torch 2.7 or so
    return not (is_range is not None and is_range()) and not event.name().startswith(_NO_KERNELS)


def told(kernels: Iterable[Kernel], launches: Iterable[tuple[str, str]] | None) -> dict[str, Any]:
    """What a profiled step says.

    Args:
        kernels: Those that the profiler saw.
        launches: Kind and recorded name of what the shim saw in the same step; None without a shim.

    Returns:
        ``kernel_times``: by recorded name (the profiler's where the shim saw none) ``{"count", "mean_ns"}``. ``kernel_check``: kernels
        of both, the number that both saw, ``missed`` by the shim and ``alone`` with it, by name; ``graphs`` that were captured unseen.
    """
    counts: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for kernel in kernels:
        counts[kernel.name] += 1
        times[kernel.name] += kernel.duration_ns
    seen = Counter(name for kind, name in launches or () if "kernel" in kind or (kind == "graph" and name))
    recorded = {demangled(name): name for name in seen}
    listed = counts.most_common(MAX_KERNELS)
    found: dict[str, Any] = {
        "kernel_times": {recorded.get(name, name): {"count": count, "mean_ns": times[name] / count} for name, count in listed}
    }
    if launches is not None:
        as_profiled = Counter({demangled(name): count for name, count in seen.items()})
        found["kernel_check"] = {
            "profiler": counts.total(),
            "shim": as_profiled.total(),
            "both": (counts & as_profiled).total(),
            "missed": dict((counts - as_profiled).most_common(MAX_NAMED)),
            "alone": dict((as_profiled - counts).most_common(MAX_NAMED)),
            "graphs": sum(kind == "graph" and not name for kind, name in launches),
        }
    return found


def demangled(name: str) -> str:
    """A name as the profiler writes it: by the C++ library that torch has loaded; as it is if that cannot be."""
    if not name.startswith("_Z"):
        return name
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        demangle, free = library.__cxa_demangle, ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return name
    status = ctypes.c_int()
    demangle.restype, demangle.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    free.argtypes = (ctypes.c_void_p,)
    made = demangle(name.encode(), None, None, ctypes.byref(status))
    if not made:
        return name
    text = ctypes.string_at(made).decode("utf-8", errors="backslashreplace")
    free(made)
    return text
