"""Which backend digests the tensors of a kind of device, and why that one.

CUDA devices (ROCm ones call themselves the same) answer later: by the compiled kernel where CuPy and a compiler are there, else by
the torch twin, whose sums are copied to pinned memory and looked at when their event has passed. Other devices answer at once,
which waits for them: their streams and events have no interface here yet.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch

from opguard_core.probe import torch_twin
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import Backend, Deliveries, Layout, Record, View

_data_ptr = torch.Tensor.data_ptr  # as it is before capture notices its callers
_WORDS = 5
_BLOCK_ROWS = 1024
COMPILED_KERNELS = "the compiled kernels"
_POLL_S = 0.001
_CAPTURED = "recorded into a CUDA graph, not run: only the compiled kernel can be part of one"
_deliveries: dict[str, Deliveries | None] = {}
_lock = threading.RLock()
_ours: tuple[Callable[[int], int], int] | None = None


def deliveries_for(device_type: str) -> Deliveries | None:
    """Who digests tensors of a device later; None for a device that answers at once. Cost: one look-up after the first call."""
    try:
        return _deliveries[device_type]
    except KeyError:
        with _lock:
            if device_type not in _deliveries:
                _deliveries[device_type] = _choose() if device_type == "cuda" else None
        return _deliveries[device_type]


@contextmanager
def hidden() -> Iterator[None]:
    """Operations in here reach neither dispatch modes nor subclasses nor autograd, and their device work is not the program's."""
    ours = _ours
    outer = None if ours is None else ours[0](ours[1])
    try:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
            yield
    finally:
        if ours is not None and outer is not None:
            ours[0](outer)


def say_ours(ours: tuple[Callable[[int], int], int] | None) -> None:
    """How to say that what the calling thread gives to a device is ours: a function, and its argument; None: not at all."""
    global _ours
    _ours = ours


def any_expected() -> bool:
    """Whether this process may ever meet a device that answers later. Starts no device."""
    return bool(torch.version.cuda or torch.version.hip) or any(_deliveries.values())


def install(device_type: str, backend: Backend | None, reason: str) -> Deliveries | None:
    """Have a backend digest the tensors of a kind of device from now on (tests; other accelerators); None: at once."""
    with _lock:
        _deliveries[device_type] = found = None if backend is None else Deliveries(backend, reason)
    return found


def uninstall(device_type: str) -> None:
    """Choose again when such a tensor is met."""
    with _lock:
        _deliveries.pop(device_type, None)


def collect() -> int:
    """Keep every promise whose digests have arrived; returns how many. Never waits."""
    return sum(found.collect() for found in list(_deliveries.values()) if found is not None)


def report() -> dict[str, Any]:
    """For the manifest: by kind of device, which backend digested its tensors and why."""
    return {device: found.report() for device, found in sorted(_deliveries.items()) if found is not None}


def _choose() -> Deliveries:
    backend, reason = _compiled()
    return Deliveries(backend or DeviceTwin(), reason)


def _compiled() -> tuple[Backend | None, str]:
    """The compiled kernels' backend, ready on the current device, and why it is not the fastest; or why there is none.

    OPGUARD_NO_KERNELS in the environment leaves the kernels out: to try the other way.
    """
    if os.environ.get("OPGUARD_NO_KERNELS"):
        return None, "torch operations: OPGUARD_NO_KERNELS is set"
    try:
        cuda = import_module("opguard_core.probe.cuda")  # only where there is a CUDA tensor
    except ImportError as error:
        return None, f"torch operations: {error}"
    found = cuda.prober()
    problem = found if isinstance(found, Unreadable) else found.open_device(torch.cuda.current_device())
    if problem is not None:
        return None, f"torch operations: {problem.reason}"
    return found, found.reason or COMPILED_KERNELS


class _Asked(NamedTuple):
    """One probe whose sums are on their way to pinned memory."""

    ticket: int
    layout: Layout
    row: int  # address of its words
    event: Any


class DeviceTwin:
    """The torch twin without waiting: five words a tensor are left on the device and copied to pinned memory behind it.

    Cost: some 60 launches a tensor (`torch_twin`), one copy of 40 bytes, one event; host memory of 40 bytes for each probe on its
    way. Pinned memory is taken in blocks of 40 kB when more probes are on their way than ever before: that call of the driver alone
    may wait for the device.
    """

    name = "torch"

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._asked: dict[tuple[int, int], deque[_Asked]] = {}  # by device and stream, in its order
        self._free_rows: deque[int] = deque()
        self._free_events: deque[Any] = deque()
        self._blocks: list[torch.Tensor] = []
        self._next = 1
        self._failed = ""

    def submit(self, views: Sequence[View]) -> list[int | Unreadable]:
        """As `Backend.submit`."""
        with hidden():
            return [self._submit(view) for view in views]

    def _submit(self, view: View) -> int | Unreadable:
        if self._failed:
            return Unreadable(self._failed)
        if self._capturing():
            return Unreadable(_CAPTURED)
        words = torch_twin.sums(view.tensor, view.layout.element, view.layout.flip)
        with self._lock:
            if not self._free_rows:
                self._grow()
            row = self._free_rows.popleft()
            event = self._free_events.popleft() if self._free_events else self._event()
            ticket, self._next = self._next, self._next + 1
        self._send(words, row, event, view.device)
        with self._lock:
            self._asked.setdefault((view.device, view.stream), deque()).append(_Asked(ticket, view.layout, row, event))
        return ticket

    def take(self) -> list[Record]:
        """As `Backend.take`."""
        records: list[Record] = []
        for queue in list(self._asked.values()):
            while queue:
                asked = queue[0]
                try:
                    if not self._failed and not self._passed(asked.event):
                        break
                except RuntimeError as error:  # the device is gone: nothing that is on its way will come
                    self._failed = f"the device failed: {str(error).splitlines()[0]}"
                queue.popleft()
                if self._failed:
                    records.append(Record(asked.ticket, Unreadable(self._failed)))
                    continue
                words = (ctypes.c_int64 * _WORDS).from_address(asked.row)
                records.append(Record(asked.ticket, torch_twin.finished(tuple(words), asked.layout.numel, asked.layout.element)))
                self._free_rows.append(asked.row)
                self._free_events.append(asked.event)
        return records

    def wait(self, ticket: int, timeout_s: float) -> None:
        """As `Backend.wait`: polls the events at the heads of the streams."""
        pause = threading.Event()
        for _ in range(max(1, int(timeout_s / _POLL_S))):
            heads = [queue[0] for queue in list(self._asked.values()) if queue]
            try:
                if self._failed or not heads or any(self._passed(head.event) for head in heads):
                    return
            except RuntimeError:
                return  # `take` says so
            pause.wait(_POLL_S)

    def report(self) -> dict[str, Any]:
        """As `Backend.report`; the sums themselves lie in memory of torch's allocator for the time of their copy."""
        return {"device_bytes": 0, "pinned_bytes": 8 * _WORDS * _BLOCK_ROWS * len(self._blocks)}

    def _grow(self) -> None:
        block = self._pinned()
        self._blocks.append(block)
        first = int(_data_ptr(block))
        self._free_rows.extend(first + 8 * _WORDS * row for row in range(_BLOCK_ROWS))

    # What needs a device, apart.

    def _capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def _pinned(self) -> torch.Tensor:
        return torch.empty(_BLOCK_ROWS * _WORDS, dtype=torch.int64, pin_memory=True)

    def _event(self) -> Any:
        return torch.cuda.Event()

    def _send(self, words: torch.Tensor, row: int, event: Any, device: int) -> None:
        block = next(block for block in self._blocks if 0 <= row - int(_data_ptr(block)) < 8 * block.numel())
        first = (row - int(_data_ptr(block))) // 8
        block[first : first + _WORDS].copy_(words, non_blocking=True)
        self._record(event, device)

    def _record(self, event: Any, device: int) -> None:
        event.record(torch.cuda.current_stream(device))

    def _passed(self, event: Any) -> bool:
        return bool(event.query())
