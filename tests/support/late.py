"""A stand-in for a device that answers later: it digests host tensors when asked, and delivers late, in another order, or never."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from opguard_core.fingerprint.cpu import Reader
from opguard_core.probe import backends, tensor
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import LOST, Record, View


class LateBackend:
    """Meets `promise.Backend`.

    Args:
        hold: Records kept back at any time until somebody waits for one of them.
        loses: Says of a ticket that it is never delivered as digests.
        deaf: Nothing is ever delivered, whoever waits.
    """

    name = "late"

    def __init__(self, hold: int = 40, loses: Callable[[int], bool] = lambda ticket: False, *, deaf: bool = False) -> None:
        self.hold, self.loses, self.deaf = hold, loses, deaf
        self._lock = threading.RLock()
        self._records: list[Record] = []
        self._next = 1
        self._due = 0
        self.waits: list[str] = []  # names of the threads that waited
        self.launches: list[int] = []  # tensors of each

    def submit(self, views: Sequence[View]) -> list[int | Unreadable]:
        """Digest now: what a device would find when it comes to that point of its stream."""
        tickets: list[int | Unreadable] = []
        self.launches.append(len(views))
        for view in views:
            layout = view.layout
            found = Reader(layout.element, layout.lengths, layout.steps, layout.flip).read(view.address)
            with self._lock:
                ticket, self._next = self._next, self._next + 1
                self._records.append(Record(ticket, Unreadable(LOST) if self.loses(ticket) else found, 1000 * ticket))
            tickets.append(ticket)
        return tickets

    def take(self) -> list[Record]:
        """All but the newest ones, the last first."""
        if self.deaf:
            return []
        with self._lock:
            due = list(self._records[: max(0, len(self._records) - self.hold)])
            due += [record for record in self._records[len(due) :] if record.ticket <= self._due]
            gone = {record.ticket for record in due}
            self._records = [record for record in self._records if record.ticket not in gone]
        return due[::-1]

    def wait(self, ticket: int, timeout_s: float) -> None:
        """Let everything up to a ticket be taken."""
        with self._lock:
            self.waits.append(threading.current_thread().name)
            self._due = max(self._due, ticket)
        if self.deaf:
            threading.Event().wait(min(timeout_s, 0.001))

    def report(self) -> dict[str, Any]:
        """Nothing on any device."""
        return {"device_bytes": 0}


@contextlib.contextmanager
def answering_later(backend: LateBackend | None = None) -> Iterator[LateBackend]:
    """Have host tensors digested by a device that answers later."""
    backend = backend or LateBackend()
    host, tensor._HOST = tensor._HOST, frozenset({"nothing answers at once"})
    tensor._kinds.clear()
    backends.install("cpu", backend, "a test")
    try:
        yield backend
    finally:
        tensor._HOST = host
        tensor._kinds.clear()
        backends.uninstall("cpu")
