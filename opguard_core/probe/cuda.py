"""Digests of CUDA tensors by the compiled kernels: one launch per operator on its own stream, results by a background thread.

    Deliveries.ask, ask_together -> Launcher.submit -> cuda/launch.c -> kernel -> ring on the device -> copier thread (C) -> Launcher.take

Nothing here waits for a device on the training's thread. Sits behind ``promise.Backend``; ``backends`` falls back to torch operations
where ``prober`` answers with a reason. It cannot see whether memory has been written, nor when a CUDA graph is gone: a captured launch
keeps its few bytes of device memory until the process ends.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from opguard_core import builds
from opguard_core.fingerprint.digest import Digests
from opguard_core.probe import cuda_kernels, ending, launch_recipe
from opguard_core.probe.asking import Arrived, Views
from opguard_core.probe.cuda_forms import (
    HAS_STATISTICS,
    IS_LOST,
    MAX_DIMS,
    RECORD,
    TRIVIAL,
    WORDS,
    Delivered,
    Statistics,
    ViewForm,
    prepare,
    prepare_all,
)
from opguard_core.probe.cuda_kernels import NO_ELEMENTS, NO_VALUE64, REGIONS_SHIFT, STATISTICS
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import LOST, Record, View
from opguard_core.probe.python_launch import PythonLaunch

__all__ = ["NO_ELEMENTS", "NO_VALUE64", "REGIONS_SHIFT", "STATISTICS", "Delivered", "Launcher", "Statistics", "prober"]

RING_RECORDS = 1 << 17
CLOSE_S = 10.0
CAPTURED_BYTES = 16 << 20  # some 80,000 captured launches of one tensor
_TAKE = 1 << 16
_MASK32 = (1 << 32) - 1


class Launcher:
    """The C launch path as a backend of promises. Safe from any thread.

    Args:
        module: The built extension, or ``PythonLaunch``; its driver loaded.
        kernels: Answers with the kernels' handles for a device and the flags of a submit, in the order of ``KERNELS``.
        flags: Of every submit of this object's.
        ring_records: Of each device's ring, a power of two.
        captured_bytes: Device memory for launches inside CUDA graphs, per device.
        reason: Why launches come from Python; "" if from C.

    Raises (from ``submit``): nothing; what cannot be launched is `Unreadable`.
    """

    name = "cuda"

    def __init__(
        self,
        module: Any,
        kernels: Callable[[int, int], Sequence[int] | Unreadable],
        *,
        flags: int = 0,
        ring_records: int = RING_RECORDS,
        captured_bytes: int = CAPTURED_BYTES,
        reason: str = "",
    ) -> None:
        self.reason = reason
        self.flags, self._variant = flags, cuda_kernels.variant_of(flags)
        self._module, self._kernels = module, kernels
        self._sizes = (ring_records, captured_bytes)
        self._opened: dict[tuple[int, str], Unreadable | None] = {}
        self._ready: set[int] = set()  # devices that were opened for our own flags
        regions = flags >> REGIONS_SHIFT & 255
        self._last_region = regions if regions > 1 else 0
        self._opening = threading.RLock()
        self._nbytes: dict[int, int] = {}
        self._early: list[tuple[Any, ...]] = []  # delivered before `submit` had come back to note their sizes
        self._ranges: dict[int, list[int]] = {}  # tickets of `Views`: by the first, their number and how many are still to come
        self._submit, self._submit_views, self._take = module.submit, module.submit_views, module.take

    @property
    def api(self) -> Any:
        """The capsule ``og_probe_api`` for C and C++ callers, None if launches come from Python; see ``open_device``."""
        return self._module.api

    def open_device(self, device: int, flags: int | None = None) -> Unreadable | None:
        """Take our memory on a device, start its copier, load the kernels that ``flags`` need; None if that worked, now or before.

        Args:
            device: Index.
            flags: Of submits to come through ``api``; this object's own by default.

        Cost: once per device: loading (on a new machine compiling) the kernels, one allocation of about 30 MiB, a stream, a thread.
        """
        flags = self.flags if flags is None else flags
        key = device, cuda_kernels.variant_of(flags)
        with self._opening:
            if key not in self._opened:
                self._opened[key] = self._open(device, flags)
            return self._opened[key]

    def submit(self, views: Sequence[View]) -> Sequence[int | Unreadable]:
        """As `Backend.submit`: one launch for up to 64 consecutive views of one device and stream.

        Cost: some microseconds, without the GIL for the launch itself; no allocation on the device, no wait for it.
        """
        if isinstance(views, Views):
            return self._submit_together(views)
        if len(views) == 1 and views[0].device in self._ready:
            return self._submit_one(views[0])
        answers: list[int | Unreadable] = []
        start = 0
        while start < len(views):
            device, stream = views[start].device, views[start].stream
            end = start + 1
            while end < len(views) and views[end].device == device and views[end].stream == stream:
                end += 1
            answers += self._submit_group(device, stream, views[start:end])
            start = end
        return answers

    def take(self) -> list[Record | Arrived]:
        """As `Backend.take`; of a launch that is replayed with its CUDA graph only the first time."""
        arrived, records = self._take_ranges(self._take_records())
        return [
            *arrived,
            *(
                Record(one.ticket, Unreadable(LOST) if one.digests is None else one.digests, one.t_device_ns or None)
                for one in self._read_all(records)
                if one.occurrence == 0 and one.region <= 1
            ),
        ]

    def take_all(self) -> list[Delivered]:
        """Every record that has come since the last call: all replays, all regions; never waits. One caller at a time.

        Not for who submits `Views`, whose records `take` alone reads.
        """
        return self._read_all(self._take_records())

    def read_from(self, take: Callable[[int], Sequence[tuple[Any, ...]]]) -> None:
        """Take no records from the queue any more but those that its one reader, who has probes of its own, hands on.

        Args:
            take: Gives at most so many, each as a tuple of the fields of ``og_record``.
        """
        self._take = lambda most: np.array(list(take(most)), dtype=RECORD).tobytes()

    def wait(self, ticket: int, timeout_s: float) -> None:
        """As `Backend.wait`."""
        self._module.wait(ticket, int(timeout_s * 1e9))

    def report(self) -> dict[str, Any]:
        """As `Backend.report`: sums over the devices that were opened."""
        totals: dict[str, Any] = {"device_bytes": 0, "pinned_bytes": 0}
        failed: list[str] = []
        failed += sorted({problem.reason for problem in self._opened.values() if problem is not None})
        for device in sorted({device for (device, _), problem in self._opened.items() if problem is None}):
            for name, value in self._module.report(device).items():
                if name == "failed":
                    failed += [value] if value else []
                elif name in ("tickets", "delivered", "lost", "replays_lost", "ring_records"):  # of all devices, or alike
                    totals[name] = value
                else:
                    totals[name] = totals.get(name, 0) + value
        return {**totals, "failed": failed, **({"reason": self.reason} if self.reason else {})}

    def close(self, patience_s: float = CLOSE_S) -> None:
        """Wait for what is on its way, then end the copiers. The device memory stays, for graphs that may still be replayed.

        Args:
            patience_s: What is outstanding is given up after so long without any delivery; ``report()["failed"]`` says how much is lost.
        """
        self._module.close(int(patience_s * 1e9))

    def _open(self, device: int, flags: int) -> Unreadable | None:
        handles = self._kernels(device, flags)
        if isinstance(handles, Unreadable):
            return handles
        try:
            self._module.open(device, tuple(handles), *self._sizes)
        except (RuntimeError, ValueError) as error:
            return Unreadable(str(error))
        if cuda_kernels.variant_of(flags) == self._variant:
            self._ready.add(device)
        return None

    def _submit_group(self, device: int, stream: int, views: Sequence[View]) -> Sequence[int | Unreadable]:
        key = device, self._variant
        problem = self._opened[key] if key in self._opened else self.open_device(device)
        if problem is not None:
            return [problem] * len(views)
        pairs = tuple([(view.address, view.layout.prepared or prepare(view.layout)) for view in views])
        if not all(pair[1] for pair in pairs):
            return self._submit_readable(device, stream, views)
        first = self._submit(device, stream, pairs, self.flags)
        if not first:
            return [Unreadable(self._module.last_error())] * len(views)
        tickets = range(first, first + len(views))
        for ticket, view in zip(tickets, views, strict=True):
            self._nbytes[ticket] = view.layout.nbytes
        return tickets

    def _submit_together(self, views: Views) -> Sequence[int | Unreadable]:
        """As `_submit_group`, without an object for each view: what is sent differs from time to time by its addresses alone."""
        problem = self.open_device(views.device)
        if problem is not None:
            return [problem] * len(views)
        layouts = views.layouts
        if layouts.prepared is None:
            layouts.prepared = prepare_all(layouts)
        if layouts.prepared is False or self._last_region:
            return self.submit(list(views))
        layouts.prepared[:, 0] = views.addresses
        first = self._submit_views(views.device, views.stream, layouts.prepared, self.flags)
        if not first:
            return [Unreadable(self._module.last_error())] * len(views)
        self._ranges[first] = [len(views)] * 2
        return range(first, first + len(views))

    def _submit_one(self, view: View) -> list[int | Unreadable]:
        """The usual case, by the shortest way."""
        form = view.layout.prepared or prepare(view.layout)
        if not form:
            return self._submit_readable(view.device, view.stream, (view,))
        first = self._submit(view.device, view.stream, ((view.address, form),), self.flags)
        if not first:
            return [Unreadable(self._module.last_error())]
        self._nbytes[first] = view.layout.nbytes
        return [first]

    def _submit_readable(self, device: int, stream: int, views: Sequence[View]) -> list[int | Unreadable]:
        answers: list[int | Unreadable] = []
        for view in views:
            if view.layout.prepared:
                answers += self._submit_group(device, stream, (view,))
            else:
                answers.append(Unreadable(f"more than {MAX_DIMS} dimensions that cannot be joined"))
        return answers

    def _take_records(self) -> Any:
        rows, self._early = self._early, []
        records = np.frombuffer(self._take(_TAKE), dtype=RECORD)
        return np.concatenate((np.array(rows, dtype=RECORD), records)) if rows else records

    def _take_ranges(self, records: Any) -> tuple[list[Record | Arrived], Any]:
        """What came of `Views`, and the records of all else. Cost: some numpy calls for each range, whatever its length."""
        if not self._ranges or not len(records):
            return [], records
        known = sorted(self._ranges.items())
        firsts, numbers = np.array([(first, number) for first, (number, _) in known], dtype=np.int64).T
        tickets = records["ticket"].astype(np.int64)
        owners = np.searchsorted(firsts, tickets, "right") - 1
        owners[tickets - firsts[owners] >= numbers[owners]] = -1
        found = set(owners.tolist())
        arrived: list[Record | Arrived] = []
        for owner in sorted(found - {-1}):
            first, state = known[owner]
            mine = records if len(found) == 1 else records[owners == owner]
            again = mine["occurrence"] != 0  # of a CUDA graph: they come with each replay, and the first counts
            mine = mine[~again] if again.any() else mine
            state[1] -= len(mine)
            if not state[1]:
                self._ranges.pop(first)
            if not len(mine):
                continue
            words = mine.view("<u8").reshape(len(mine), -1)[:, WORDS].copy()
            words[:, 3] = (words[:, 3] ^ (words[:, 3] >> np.uint64(32))) & np.uint64(_MASK32)
            arrived.append(Arrived(first, mine["ticket"].astype(np.int64) - first, words, mine["flags"] & IS_LOST != 0))
        return arrived, records[owners < 0] if -1 in found else records[:0]

    def _read_all(self, records: Any) -> list[Delivered]:
        return [one for row in records.tolist() if (one := self._read(row)) is not None]

    def _read(self, row: tuple[Any, ...]) -> Delivered | None:
        ticket, occurrence, mix64, value64, bag64, xor64, t_device_ns, nan_count, inf_count, max_abs, flags, region, is_captured = row
        more = is_captured or (region < self._last_region and not flags & IS_LOST)
        nbytes = self._nbytes.get(ticket) if more else self._nbytes.pop(ticket, None)
        if nbytes is None:
            if not is_captured:  # else a replay of a range that is done: no graph runs before its launch was noted
                self._early.append(row)
            return None
        if flags & IS_LOST:
            return Delivered(ticket, occurrence, None, t_device_ns, True, None, region)
        digests = Digests(mix64, value64, bag64, (xor64 ^ (xor64 >> 32)) & _MASK32, bool(flags & TRIVIAL), nbytes)
        statistics = Statistics(nan_count, inf_count, max_abs) if flags & HAS_STATISTICS else None
        return Delivered(ticket, occurrence, digests, t_device_ns, False, statistics, region)


_prober: Launcher | Unreadable | None = None
_making = threading.RLock()


def prober() -> Launcher | Unreadable:
    """The process's launch path, or why there is none. Without a compiler launches come from Python (``Launcher.reason``).

    Cost: the first call builds the extension if no launcher did so before; no device is touched until a tensor of it is met.
    """
    global _prober
    with _making:
        if _prober is None:
            _prober = _make()
        return _prober


def load(path: Path) -> Any:
    """Import the extension of a built file: an ``open_with`` of ``builds.obtain``. Its driver is not loaded yet.

    Raises:
        OSError: It is of another version.
        ImportError: It cannot be imported.
    """
    module = builds.load_extension(launch_recipe.MODULE, path)
    sizes = module.VIEW_BYTES, module.RECORD_BYTES
    if sizes != (ctypes.sizeof(ViewForm), RECORD.itemsize) or module.KERNELS != cuda_kernels.KERNELS:
        raise OSError(f"{path} lays its views out differently from this version")
    return module


def _make() -> Launcher | Unreadable:
    try:
        ctypes.CDLL(launch_recipe.driver_path())
    except OSError as error:  # nothing to build for
        return Unreadable(f"no CUDA driver: {error}")
    recipe = launch_recipe.recipe()
    built = recipe if isinstance(recipe, builds.NotBuilt) else builds.obtain(recipe, load)
    module: Any = PythonLaunch() if isinstance(built, builds.NotBuilt) else built.opened
    try:
        module.load(launch_recipe.driver_path())
    except OSError as error:
        return Unreadable(str(error))
    launcher = Launcher(module, _handles, reason=f"launched from Python: {built.reason}" if isinstance(built, builds.NotBuilt) else "")
    # By then every capture has taken what it waits for: nobody is left who would take what this waits for.
    ending.close_last(partial(launcher.close, 0.0))
    return launcher


def _handles(device: int, flags: int) -> Sequence[int] | Unreadable:
    found = cuda_kernels.kernels(device, cuda_kernels.variant_of(flags))
    return found if isinstance(found, Unreadable) else found.handles
