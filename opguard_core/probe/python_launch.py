"""The launch path in Python, for machines without a C compiler: the same kernels and ring, the driver called through ctypes.

Has the functions of the extension module (cuda/launch.c), so ``cuda.Launcher`` works with either; no capsule for C++. A probe costs some
30 us of the training's thread instead of about 3, and eight views go into a launch instead of 64.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from collections import deque
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from opguard_core.probe import python_plan
from opguard_core.probe.kernel_build import KERNELS, variant_of

_NOT_READY, _NON_BLOCKING, _RELAXED, _CAPTURING, _MULTIPROCESSORS = 600, 1, 2, 1, 16
_LOST = 4
_ENTRY_BYTES, _RING_BYTES, _SCRATCH_BYTES, _SITE_BYTES = 96, 64, 1024, 1024
_NUM_STREAMS = 256
_LOOK_S, _PRESSURE_S, _OPEN_S = 0.002, 0.02, 0.0001
_RECORD = struct.Struct("<9QfIIIQ")
_TAKEN = struct.Struct("<9QfIII")
_FACTORS = np.array([(0xD6E8FEB86659FD93 + 2 * k) & ((1 << 64) - 1) for k in range(11)], dtype=np.uint64)
_WEYL = np.uint64(0x9E3779B97F4A7C15)


class _Refused(Exception):
    """A call of the driver failed."""


class _Device(NamedTuple):
    ordinal: int
    context: ctypes.c_void_p
    stream: ctypes.c_void_p
    ring: int
    entries: int
    scratch: int
    capacity: int
    num_sms: int
    staging: int
    device_bytes: int
    pinned_bytes: int


class PythonLaunch:
    """Stands where the extension module would. Safe from any thread, and from finalisers that run operators."""

    api = None  # nothing for C++ callers

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._devices: dict[int, _Device] = {}
        self._kernels: dict[tuple[int, str], int] = {}
        self._on_way: dict[int, tuple[int, int]] = {}  # ticket: device, stream
        self._captured: dict[int, int] = {}  # ticket: occurrence that is due
        self._scratch: dict[tuple[int, int], int] = {}
        self._free: dict[int, deque[int]] = {}
        self._results: deque[tuple[Any, ...]] = deque()
        self._consumed: dict[int, int] = {}
        self._lost_seen: dict[int, int] = {}
        self._unaccounted: dict[int, int] = {}
        self._failed: dict[int, str] = {}
        self._next, self._launches, self._copies, self._repeated, self._num_lost, self._is_ending = 1, 0, 0, 0, 0, False
        self._threads: list[threading.Thread] = []
        self._error, self._is_forked = threading.local(), False
        os.register_at_fork(after_in_child=self._forget)

    def load(self, path: str) -> None:
        """Find the driver. Raises OSError with the reason if there is none."""
        self._driver = ctypes.CDLL(path)
        if self._driver.cuInit(0):
            raise OSError(f"the CUDA driver in {path} did not start")

    def open(self, device: int, kernels: tuple[int, ...], ring_records: int, captured_bytes: int) -> None:
        """Take memory, start the copier. Raises RuntimeError if the device refuses."""
        for name, handle in zip(KERNELS, kernels, strict=True):
            if handle:
                self._kernels[device, name] = handle
        if device not in self._devices:
            try:
                found = self._devices[device] = self._take_memory(device, ring_records, captured_bytes)
            except _Refused as error:
                raise RuntimeError(f"device {device}: {error}") from error
            thread = threading.Thread(target=self._copy, args=(found,), name="opguard-copier", daemon=True)
            self._threads.append(thread)
            thread.start()

    def submit(self, device: int, stream: int, views: tuple[tuple[int, bytes], ...], flags: int) -> int:
        """As the extension's: first of consecutive tickets, 0 if refused (``last_error``)."""
        place = self._devices.get(device)
        if self._is_forked:
            return self._refuse("the process was forked: the device belongs to its parent")
        if place is None or device in self._failed:
            return self._refuse(self._failed.get(device, "the device was not opened"))
        if flags >> 8 & 255 > 1:
            return self._refuse("regions need the compiled launch path")
        status, now = ctypes.c_int(), ctypes.c_void_p()
        self._driver.cuCtxGetCurrent(ctypes.byref(now))
        if now.value != place.context.value:
            self._driver.cuCtxPushCurrent_v2(place.context)
        try:
            if error := self._driver.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status)):
                return self._refuse(f"stream: CUDA error {error}")
            return self._submit(place, stream, views, flags, status.value == _CAPTURING)
        finally:
            if now.value != place.context.value:
                self._driver.cuCtxPopCurrent_v2(ctypes.byref(now))

    def submit_views(self, device: int, stream: int, views: Any, flags: int) -> int:
        """As the extension's: `submit` of ``og_view`` structures that lie one after another."""
        raw = bytes(views)
        forms = [raw[start : start + python_plan.VIEW_BYTES] for start in range(0, len(raw), python_plan.VIEW_BYTES)]
        pairs = [(int.from_bytes(form[:8], "little"), bytes(8) + form[8:]) for form in forms]
        return self.submit(device, stream, tuple(pairs), flags)

    def take(self, most: int) -> bytes:
        """Finished records, in the extension's form."""
        rows: list[bytes] = []
        while self._results and len(rows) < most:
            rows.append(_TAKEN.pack(*self._results.popleft()))
        return b"".join(rows)

    def wait(self, ticket: int, timeout_ns: int) -> None:
        """Until the ticket has arrived or was given up, or so long."""
        with self._lock:
            self._changed.wait_for(lambda: ticket not in self._on_way, timeout_ns / 1e9)

    def submitted(self) -> int:
        """Tickets given out."""
        return self._next - 1

    def last_error(self) -> str:
        """Of this thread's last submit."""
        return getattr(self._error, "text", "")

    def report(self, device: int) -> dict[str, Any]:
        """Counters, by the extension's names."""
        place = self._devices[device]
        counts = {"launches": self._launches, "copies": self._copies, "copies_repeated": self._repeated, "captured": len(self._captured)}
        memory = {"device_bytes": place.device_bytes, "pinned_bytes": place.pinned_bytes, "ring_records": place.capacity}
        lost = {"lost": self._num_lost, "left_out_on_device": self._lost_seen[device], "tickets": self._next - 1}
        return {**memory, **counts, **lost, "failed": self._failed.get(device, "")}

    def close(self, patience_ns: int) -> None:
        """Wait for what is on its way, no longer than this without any delivery, then end the copiers; what has not come then is lost."""
        if self._is_forked:
            return
        left = -1
        with self._lock:
            while self._on_way and len(self._on_way) != left:
                left = len(self._on_way)
                self._changed.wait_for(partial(self._is_moving, left), patience_ns / 1e9)
        self._is_ending = True
        for thread in self._threads:
            thread.join()
        for device in self._devices:
            lost = sum(where == device for where, _ in self._on_way.values())
            self._fail(device, f"device {device} was closed" + (f" with {lost} digests on their way" if lost else ""))

    def _is_moving(self, left: int) -> bool:
        return len(self._on_way) != left

    def _submit(self, place: _Device, stream: int, views: tuple[tuple[int, bytes], ...], flags: int, captured: bool) -> int:
        number, device = len(views), place.ordinal
        with self._lock:
            limit = place.capacity // 2 if self._captured else place.capacity
            fits = captured or self._changed.wait_for(lambda: len(self._on_way) + number <= limit, _PRESSURE_S)
            first, self._next = self._next, self._next + number
            tickets = range(first, first + number)
            scratch = 0 if captured or not fits else self._scratch_of(place, stream)
            if captured:
                self._captured.update(dict.fromkeys(tickets, 0))
            elif fits and scratch:
                self._on_way.update(dict.fromkeys(tickets, (device, stream)))
            else:
                self._refuse("the ring is full")
                self._give_up(tickets)
                return first
        done = 0
        while done < number:
            planned = python_plan.plan(views[done:], place.num_sms)
            some = tickets[done : done + planned.num_views]
            if not self._launch(place, stream, planned, some, flags, scratch):
                with self._lock:
                    self._give_up(some)
            done += planned.num_views
        return first

    def _launch(self, place: _Device, stream: int, planned: python_plan.Planned, tickets: range, flags: int, scratch: int) -> bool:
        occurrence = 0
        if not scratch:
            free = self._free[place.ordinal]
            if not free:
                self._refuse("no room for another captured launch")
                return False
            occurrence = free.popleft()
        body = planned.parameter(place.ring, place.entries, scratch or occurrence + 64, occurrence, tickets[0], place.capacity)
        parameter = ctypes.create_string_buffer(body, len(body))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        handle = ctypes.c_void_p(self._kernels.get((place.ordinal, f"{variant_of(flags)}_few"), 0))
        shape = planned.grid, 1, 1, python_plan.THREADS, 1, 1, 0
        error = self._driver.cuLaunchKernel(handle, *shape, ctypes.c_void_p(stream), pointers, None) if handle else 400
        if error:
            self._refuse(f"launch: CUDA error {error}")
            return False
        self._launches += 1
        return True

    def _scratch_of(self, place: _Device, stream: int) -> int:
        number = ctypes.c_ulonglong()
        key = stream if self._driver.cuStreamGetId(ctypes.c_void_p(stream), ctypes.byref(number)) else number.value
        found = self._scratch.get((place.ordinal, key), 0)
        taken = sum(device == place.ordinal for device, _ in self._scratch) if not found else 0
        if not found and taken < _NUM_STREAMS:
            found = self._scratch[place.ordinal, key] = place.scratch + taken * _SCRATCH_BYTES
        return found

    def _give_up(self, tickets: Any) -> None:
        for ticket in list(tickets):
            self._on_way.pop(ticket, None)
            self._num_lost += 1
            self._results.append((ticket, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, _LOST, 0, int(self._captured.pop(ticket, None) is not None)))
        self._changed.notify_all()

    def _refuse(self, why: str) -> int:
        self._error.text = why
        return 0

    def _fail(self, device: int, why: str) -> None:
        with self._lock:
            self._failed.setdefault(device, why)
            self._give_up([ticket for ticket, (where, _) in self._on_way.items() if where == device])

    def _forget(self) -> None:
        self._is_forked = True
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._on_way, self._results = {}, deque()

    # The copier.

    def _call(self, name: str, *arguments: Any) -> None:
        error = getattr(self._driver, name)(*arguments)
        if error:
            raise _Refused(f"{name}: CUDA error {error}")

    def _finish(self, stream: ctypes.c_void_p) -> None:
        while (error := self._driver.cuStreamQuery(stream)) == _NOT_READY:
            if self._is_ending:  # whoever ends us must not wait for a device that hangs
                raise _Refused("it was closed")
            time.sleep(_OPEN_S)
        if error:
            raise _Refused(f"CUDA error {error}")

    def _take_memory(self, device: int, ring_records: int, captured_bytes: int) -> _Device:
        mode, context, stream, sms = ctypes.c_int(_RELAXED), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        memory, pinned, before = ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxPushCurrent_v2", context)
        self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            self._call("cuDeviceGetAttribute", ctypes.byref(sms), _MULTIPROCESSORS, device)
            entries, scratch = 256, 256 + ring_records * _ENTRY_BYTES
            sites = scratch + _NUM_STREAMS * _SCRATCH_BYTES
            device_bytes, pinned_bytes = sites + captured_bytes, ring_records * _ENTRY_BYTES + 128
            self._call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(device_bytes))
            self._call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(pinned_bytes), 0)
            self._call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
            self._call("cuMemsetD8Async", memory, 0, ctypes.c_size_t(device_bytes), stream)
            self._finish(stream)
        finally:
            self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(before))
        base = memory.value
        self._free[device] = deque(range(base + sites, base + device_bytes - _SITE_BYTES + 1, _SITE_BYTES))
        self._consumed[device] = self._lost_seen[device] = self._unaccounted[device] = 0
        places = base, base + entries, base + scratch, ring_records, sms.value, pinned.value or 0
        return _Device(device, context, stream, *places, device_bytes, pinned_bytes)

    def _copy(self, place: _Device) -> None:
        """The thread of one device."""
        mode = ctypes.c_int(_RELAXED)
        self._driver.cuCtxSetCurrent(place.context)
        self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            while not self._is_ending and not self._is_forked:
                if self._on_way or self._captured:
                    self._drain(place)
                time.sleep(_LOOK_S)
        except _Refused as error:
            if not self._is_ending:
                self._fail(place.ordinal, f"device {place.ordinal} failed: {error}")

    def _down(self, place: _Device, to: int, source: int, nbytes: int) -> None:
        self._call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(to), ctypes.c_uint64(source), ctypes.c_size_t(nbytes), place.stream)
        self._copies += 1
        self._finish(place.stream)

    def _drain(self, place: _Device) -> None:
        device, mailbox = place.ordinal, place.staging + place.capacity * _ENTRY_BYTES
        self._down(place, mailbox, place.ring, _RING_BYTES)
        position, lost, *_ = (ctypes.c_uint64 * 8).from_address(mailbox)
        with self._lock:
            self._unaccounted[device] += lost - self._lost_seen[device]
            self._lost_seen[device] = lost
        while (consumed := self._consumed[device]) < position:
            at = consumed % place.capacity
            number = min(position - consumed, place.capacity - at)
            self._down(place, place.staging, place.entries + at * _ENTRY_BYTES, number * _ENTRY_BYTES)
            raw = (ctypes.c_char * (number * _ENTRY_BYTES)).from_address(place.staging).raw
            whole = _whole(raw, consumed)
            self._repeated += whole < number
            arrived = [
                record for place_ in range(whole) if (record := self._arrive(device, _RECORD.unpack_from(raw, place_ * _ENTRY_BYTES)))
            ]
            self._consumed[device] = consumed + whole
            word = ctypes.c_uint64.from_address(mailbox + _RING_BYTES)
            word.value = consumed + whole
            told = ctypes.c_void_p(mailbox + _RING_BYTES)
            self._call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(place.ring + 16), told, ctypes.c_size_t(8), place.stream)
            self._finish(place.stream)
            with self._lock:  # only now is there room that the device knows of
                for ticket in arrived:
                    self._on_way.pop(ticket, None)
                self._changed.notify_all()
            if whole < number:
                return

    def _arrive(self, device: int, record: tuple[Any, ...]) -> int:
        """Queue a record; its ticket if that was on its way."""
        ticket, occurrence = record[:2]
        with self._lock:
            is_eager, due = ticket in self._on_way, self._captured.get(ticket)
            if is_eager and self._unaccounted[device]:
                stream = self._on_way[ticket]
                older = [one for one, where in self._on_way.items() if one < ticket and where == stream]
                self._unaccounted[device] = max(0, self._unaccounted[device] - len(older))
                self._give_up(older)
            if due is not None:
                for missing in range(due, occurrence):
                    self._results.append((ticket, missing, 0, 0, 0, 0, 0, 0, 0, 0.0, _LOST, 0, 1))
                self._unaccounted[device] = max(0, self._unaccounted[device] - (occurrence - due))
                self._captured[ticket] = occurrence + 1
            if is_eager or due is not None:
                self._results.append((*record[:12], int(due is not None)))
        return ticket if is_eager else 0


def _whole(raw: bytes, position: int) -> int:
    """How many entries at the front are whole (``og_check`` of probe_api.h)."""
    words = np.frombuffer(raw, dtype=np.uint64).reshape(-1, _ENTRY_BYTES // 8)
    places = np.arange(position + 1, position + 1 + len(words), dtype=np.uint64)
    record = words[:, :11]
    sums = places * _WEYL + ((record ^ (record >> np.uint64(29))) * _FACTORS).sum(axis=1, dtype=np.uint64)
    good = (sums ^ (sums >> np.uint64(32))) == words[:, 11]
    return len(good) if good.all() else int(np.argmin(good))
