"""Whether and how a rank's device work is collected: the shim it began with, what it is told, and which memory is the program's."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from opguard_core.engines.native_build import card_here
from opguard_core.engines.rank import RankContext
from opguard_core.engines.streams import Streams
from opguard_core.ids import SENTINEL
from opguard_core.intercept import cupti, shim
from opguard_core.intercept.launches import Collector
from opguard_core.intercept.wanted import SWITCH, SWITCHED_OFF
from opguard_core.probe import backends

LOOK_S = 0.5  # between two looks at what torch's allocator holds: some ms, with its lock


class Unwatched(NamedTuple):
    """Why nothing is collected; None where there is no card to give work to."""

    reason: str | None

    def report(self) -> dict[str, Any]:
        """What the manifest says."""
        return {"active": False, "reason": self.reason}


class DeviceMemory:
    """Which device addresses lie in memory of the program.

    All that torch's allocator holds, or ever held, counts, used or not. Memory of others that the program shows as a tensor (CuPy's by
    DLPack) is not known by its addresses: while there is any, every address may lie in it.

    Args:
        storages: Of the rank.
    """

    def __init__(self, storages: Any) -> None:
        self._storages = storages
        self._segments: dict[int, int] = {}
        self._begins = self._ends = np.empty(0, np.uint64)
        self._looked_s = -LOOK_S
        self._grown: Any = None  # how much the allocator had ever taken when it was looked at

    def touches(self, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which of the addresses lie, or may lie, in it."""
        inside = self._inside(addresses)
        if inside.all() or self._storages.foreign_on_device:
            return np.ones(len(addresses), bool)
        if not torch.cuda.is_initialized():
            return inside  # so torch had nothing there when this was launched
        if self._grown is not None and self._grown == _grown():
            return inside  # nothing was taken since the last look: what lies outside is somebody else's
        if time.monotonic() - self._looked_s < LOOK_S:
            return np.ones(len(addresses), bool)  # what the allocator got since is not known
        self._look()
        return self._inside(addresses)

    def _inside(self, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        if not len(self._begins):
            return np.zeros(len(addresses), bool)
        at = np.searchsorted(self._begins, addresses, side="right") - 1
        return (at >= 0) & (addresses < self._ends[np.maximum(at, 0)])

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        self._grown = _grown()  # before the look: what comes in between is looked at again
        for segment in torch.cuda.memory_snapshot():
            begin = int(segment["address"])
            self._segments[begin] = max(self._segments.get(begin, 0), begin + int(segment["total_size"]))
        self._begins = np.array(sorted(self._segments), np.uint64)
        # A later segment may lie inside an earlier, larger one.
        self._ends = np.maximum.accumulate(np.array([self._segments[int(begin)] for begin in self._begins], np.uint64))


def _grown() -> Any:
    """All that torch's allocator ever took, by device: segments and bytes; None if this torch does not count them.

    Cost: some us a device, with the allocator's lock.
    """
    try:
        stats = [torch._C._cuda_memoryStats(device) for device in range(torch.cuda.device_count())]
        return [(one["segment"]["all"]["allocated"], one["reserved_bytes"]["all"]["allocated"]) for one in stats]
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return None


def watch(context: RankContext, sink: Any, streams: Streams | None) -> Collector | Unwatched:
    """What collects this rank's device work, not started yet; or why nothing does.

    Args:
        context: The rank's bookkeeping.
        sink: Where rows go.
        streams: Numbers of device streams.
    """
    found = shim.attached()
    if isinstance(found, shim.NotAttached):
        reason = SWITCHED_OFF if os.environ.get(SWITCH) == "0" else found.reason
        return Unwatched(reason if card_here() else None)
    if context.mode == SENTINEL:
        return Unwatched("mode sentinel looks at no operator")
    if not hasattr(sink, "launches"):
        return Unwatched("the sink takes no device work")
    known = streams or Streams()
    return Collector(found, sink.launches, stream_number=known.known, touches=DeviceMemory(context.storages).touches)


def stop(engine: Any, launches: Collector | Unwatched, subscriber: cupti.Subscriber | cupti.Refused | None) -> None:
    """End both records."""
    if isinstance(launches, Collector):
        tell(engine, None)
        launches.stop()
    if isinstance(subscriber, cupti.Subscriber):
        subscriber.end()


def report(launches: Collector | Unwatched, subscriber: cupti.Subscriber | cupti.Refused | None) -> dict[str, Any]:
    """What the manifest's ``engines`` say of device work; nothing of what was neither there nor asked for.

    Where both were on, the table of launches gets the times that CUPTI took: shares by time then follow from the trace alone.
    """
    told: dict[str, Any] = {}
    if isinstance(launches, Collector) or launches.reason is not None:
        told["launches"] = launches.report()
    if subscriber is not None:
        told["cupti"] = subscriber.report()
    if isinstance(subscriber, cupti.Subscriber) and isinstance(launches, Collector) and (times := subscriber.times()):
        told["launches"]["kernel_times"] = times
    return told


def tell(engine: Any, collector: Collector | None) -> None:
    """Have an engine say which event is in flight, and our own torch operations that they are ours; None: no more."""
    found = None if collector is None else collector.shim
    engine.tell_boundaries(found)
    backends.say_ours(None if found is None else (found.set_boundary, shim.OURS))
