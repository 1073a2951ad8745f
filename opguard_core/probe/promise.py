"""Digests that are on their way from a device: asked for on the training's thread, delivered to another one.

    fingerprint(t) -> Deliveries.ask -> Backend.submit -> ticket    (training's thread: never waits)
    DeferredSink's thread -> Deliveries.collect -> Backend.take -> Promise.result

A promise stands where digests would: in a slot row (as its ``mix64``), in what is known of a storage, in a sum of several. Who
needs the digests themselves asks `Promise.look`, which never waits, or `settle`, which does and is for the end of a capture and
for runs that were asked to keep single boundaries.

What it cannot see: a device that fails takes its promises with it; each becomes `Unreadable`, which is a counted gap.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from opguard_core.probe.asking import Arrived, Backend, Layout, Record, View, Views
from opguard_core.probe.gathered import Gathered
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promised import Derived, Difference, Known, Outcome, Place, Promise, Unchanged

__all__ = [
    "LOST",
    "PATIENCE_S",
    "TOGETHER",
    "Backend",
    "Deliveries",
    "Derived",
    "Difference",
    "Known",
    "Layout",
    "Outcome",
    "Promise",
    "Record",
    "Together",
    "Unchanged",
    "View",
    "any_made",
    "num_delivered",
    "settle",
    "submit_asked",
]

LOST = "the device did not deliver its digests"
PATIENCE_S = 60.0  # without any delivery, before those who wait at the end give up what is outstanding
MAX_TOGETHER = 64  # tensors that are asked for in one go; a launch takes as many
_LOOK_S = 0.05
_SOON_S = 0.001


class Deliveries:
    """Everything asked of one backend that has not come yet. Safe from any thread, and from finalisers that run operators.

    Args:
        backend: Who digests.
        reason: Why it is this one; for the manifest.
    """

    def __init__(self, backend: Backend, reason: str = "") -> None:
        self.backend, self.reason = backend, reason
        self._waiting: dict[int, Promise] = {}
        self._early: dict[int, Record] = {}  # arrived before `ask` had its promise ready
        self._ranges: dict[int, Gathered] = {}  # by the first of their tickets
        self._early_ranges: dict[int, list[Arrived]] = {}
        self._lock = threading.RLock()
        self._taking = threading.Lock()
        self.num_asked = self.num_delivered = self.num_lost = 0
        _all.add(self)

    def ask(self, view: View) -> Promise | Unreadable:
        """Have one tensor digested; inside `Together` at its end.

        Cost: one launch, or a part of one; no wait, no allocation on the device.
        """
        global _any_made
        _any_made = True
        promise = Promise(self, view.layout.nbytes, 0)
        if _batch.depth:
            _batch.asked.append((self, view, promise))
            if len(_batch.asked) >= MAX_TOGETHER:
                submit_asked()
            return promise
        self.submit((view,), (promise,))
        return _answer(promise)

    def ask_all(self, views: Sequence[View]) -> list[Promise | Unreadable]:
        """As `ask`, for several tensors at once."""
        global _any_made
        _any_made = True
        promises = [Promise(self, view.layout.nbytes, 0) for view in views]
        self.submit(views, promises)
        return [_answer(promise) for promise in promises]

    def submit(self, views: Sequence[View], promises: Sequence[Promise]) -> None:
        """Ask the backend for several tensors, in as few launches as it can do."""
        try:
            tickets = self.backend.submit(views)
        except BaseException as error:
            for promise in promises:
                promise.lose(f"it could not be asked for: {type(error).__name__}: {error}")
            raise
        for ticket, promise in zip(tickets, promises, strict=True):
            if isinstance(ticket, Unreadable):
                promise.keep(ticket)
                continue
            self._expect(ticket, promise)

    def ask_together(self, views: Views) -> Gathered:
        """Have tensors of one device and stream digested now, whatever `Together` gathers; what comes is kept in arrays.

        Cost: one call of the backend; nothing for each tensor where it takes `Views` as they are.
        """
        global _any_made
        _any_made = True
        gathered = Gathered(len(views), LOST, self.wait)
        tickets = self.backend.submit(views)
        if not isinstance(tickets, range):
            gathered.tickets = [0 if isinstance(ticket, Unreadable) else ticket for ticket in tickets]
            for place, ticket in enumerate(tickets):
                if isinstance(ticket, Unreadable):
                    gathered.keep(place, ticket)
                else:
                    self._expect(ticket, Place(gathered, place))
            return gathered
        gathered.tickets = tickets
        with self._lock:
            self.num_asked += len(tickets)
            self._ranges[tickets.start] = gathered
            early = self._early_ranges.pop(tickets.start, ())
            for arrived in early:
                self._arrive(gathered, arrived)
        return gathered

    def _expect(self, ticket: int, promise: Promise) -> None:
        promise.ticket = ticket
        with self._lock:
            self.num_asked += 1
            early = self._early.pop(ticket, None)
            if early is None:
                self._waiting[ticket] = promise
        if early is not None:
            promise.keep(early.found, early.t_device_ns)

    def _arrive(self, gathered: Gathered, arrived: Arrived) -> None:
        """With the lock held: some of a range."""
        gathered.arrive(*arrived[1:])
        if not gathered.undelivered:
            self._ranges.pop(arrived.first, None)

    def collect(self) -> int:
        """Keep every promise whose digests have arrived; returns how many. Never waits; does nothing while another thread collects."""
        if not self._taking.acquire(blocking=False):
            return 0
        try:
            return self.deliver(self.backend.take())
        finally:
            self._taking.release()

    def deliver(self, records: Iterable[Record | Arrived]) -> int:
        """Keep the promises of these records; also for whoever else empties the backend's queue. Returns their number."""
        count = 0
        for record in records:
            if isinstance(record, Arrived):
                count += len(record.places)
                with self._lock:
                    self.num_delivered += len(record.places)
                    self.num_lost += int(record.lost.sum())
                    gathered = self._ranges.get(record.first)
                    if gathered is None:
                        self._early_ranges.setdefault(record.first, []).append(record)
                    else:
                        self._arrive(gathered, record)
                continue
            count += 1
            with self._lock:
                self.num_delivered += 1
                self.num_lost += isinstance(record.found, Unreadable)
                promise = self._waiting.pop(record.ticket, None)
                if promise is None:
                    self._early[record.ticket] = record
            if promise is not None:
                promise.keep(record.found, record.t_device_ns)
        return count

    def wait(self, ticket: int, timeout_s: float) -> None:
        """Wait a while until a ticket has arrived, then collect."""
        with self._lock:
            missing = ticket in self._waiting or any(ticket in gathered.tickets for gathered in self._ranges.values())
        if not ticket:
            threading.Event().wait(min(timeout_s, _SOON_S))  # another thread is about to ask
        elif missing:
            self.backend.wait(ticket, timeout_s)
            self.collect()

    @property
    def num_outstanding(self) -> int:
        """Promises not kept yet."""
        return len(self._waiting) + sum(gathered.undelivered for gathered in list(self._ranges.values()))

    def forget(self) -> None:
        """In a forked child: nothing will come, and no lock is held by a thread that is gone."""
        self._lock, self._taking = threading.RLock(), threading.Lock()
        self._waiting, self._early, self._ranges, self._early_ranges = {}, {}, {}, {}

    def report(self) -> dict[str, Any]:
        """What goes into the manifest."""
        counts = {"probes": self.num_asked, "lost": self.num_lost, "outstanding": self.num_outstanding}
        return {"backend": self.backend.name, "reason": self.reason, **counts, **self.backend.report()}


def _answer(promise: Promise) -> Promise | Unreadable:
    """A promise that nobody has seen yet; a backend's refusal is an answer of its own."""
    return promise.result if isinstance(promise.result, Unreadable) and not promise.ticket else promise


class _Batch(threading.local):
    """What the calling thread will ask for together."""

    def __init__(self) -> None:
        self.depth = 0
        self.asked: list[tuple[Deliveries, View, Promise]] = []


class Together:
    """Inside ``with TOGETHER``, what is asked for on this thread goes to the device in one launch, at the end of the block.

    Put around the probes of one side of one operator, never around several operators: memory is used again between them. An
    event must not be handed on inside (`submit_asked` first): who waits for room there would wait for what was not asked.
    Cost: 0.5 us.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        _batch.depth += 1

    def __exit__(self, *error: object) -> None:
        _batch.depth -= 1
        submit_asked()


def submit_asked() -> None:
    """Ask for everything that this thread has gathered so far."""
    while asked := _batch.asked:
        _batch.asked = []
        for deliveries in dict.fromkeys(one for one, _, _ in asked):
            mine = [(view, promise) for one, view, promise in asked if one is deliveries]
            deliveries.submit([view for view, _ in mine], [promise for _, promise in mine])


_batch = _Batch()
TOGETHER = Together()
_all: weakref.WeakSet[Deliveries] = weakref.WeakSet()
_any_made = False


def any_made() -> bool:
    """Whether a promise has ever been made in this process."""
    return _any_made


def num_delivered() -> int:
    """Digests that have come in this process so far."""
    return sum(deliveries.num_delivered for deliveries in list(_all))


def settle(known: Known, patience_s: float = PATIENCE_S) -> Outcome:
    """Wait for digests: at the end of a capture, or where somebody asked for a result. Never on an ordinary run's training thread.

    Args:
        known: A promise, or digests.
        patience_s: Give it up after this long without any delivery.
    """
    if not isinstance(known, Promise):
        return known
    submit_asked()
    found = known.look()
    seen, since_s = -1, time.monotonic()
    while found is None:
        delivered = num_delivered()
        if delivered != seen:
            seen, since_s = delivered, time.monotonic()
        elif time.monotonic() - since_s > patience_s:
            known.lose(f"{LOST} within {patience_s:g} s")
        known.wait(_LOOK_S)
        found = known.look()
    return found


def _after_fork_in_child() -> None:
    for deliveries in list(_all):
        deliveries.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
