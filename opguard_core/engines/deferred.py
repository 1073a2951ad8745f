"""The sink between the outbox and the trace writer where digests come later: events wait in order until theirs have come.

    engine threads -> Outbox -> DeferredSink.emit -> queue -> waiting thread -> resolve -> TraceWriter.emit

Nothing on the training's threads waits for a device: they append to a queue, in memory bounded by `MAX_WAITING` rows. Only
when that many wait (the device is thousands of operators behind) an emitter waits for the copier, and is counted. Lost digests make
their slot ``unreadable`` and a counted gap. What a kill can lose grows by what waits here.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from opguard_core.engines.coverage import Coverage
from opguard_core.engines.protocol import EventSink
from opguard_core.fingerprint.digest import Digests
from opguard_core.ids import Direction, Status
from opguard_core.probe import backends
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import (
    LOST,
    PATIENCE_S,
    Difference,
    Known,
    Promise,
    Unchanged,
    any_made,
    num_delivered,
    settle,
    submit_asked,
)
from opguard_core.trace.flush import block_signals
from opguard_core.trace.forks import stop_around_forks
from opguard_core.trace.schema import EventRow, FrameRow, LifetimeRow, SlotRow
from opguard_core.trace.writer import TraceWriter as _TraceWriter  # noqa: F401  its fork handlers are to be registered before ours

MAX_WAITING = 1 << 17  # rows of events and slots, some 640 bytes each
LOOK_S = 0.02  # between two looks at what has come
CHUNK_EVENTS = 1024  # wakes the waiting thread before its time
LOST_DIGESTS = "digests-lost"
_UNREADABLE, _PROBED = Status.UNREADABLE.value, Status.PROBED.value
_WRITTEN = frozenset({Direction.OUT.value, Direction.MUT.value})
_MIX64 = SlotRow._fields.index("mix64")
_AFTER = SlotRow._fields.index("trivial") + 1
_STATUS = SlotRow._fields.index("status")


class Resolved(NamedTuple):
    """An event whose promises are kept."""

    event: EventRow
    slots: Sequence[SlotRow]
    lost: list[tuple[str, bool]]  # why, and whether it touches state
    num_undeclared: int


def words_of(known: Known) -> tuple[Any, int, int, int, bool]:
    """What stands in a slot row's ``mix64`` to ``trivial``: digests, or their promise and nothing."""
    if isinstance(known, Promise):
        return known, 0, 0, 0, False
    return known.mix64, known.value64, known.bag64, known.xor32, known.trivial


def settled(rows: Sequence[SlotRow]) -> list[SlotRow]:
    """Rows with their digests in place, waited for: for who keeps a boundary in full, which waits for the device anyway."""
    ready = []
    for row in rows:
        promise: Any = row.mix64
        if not isinstance(promise, Promise):
            ready.append(row)
            continue
        found = settle(promise)
        if not isinstance(found, Unchanged):
            ready.append(_filled(row, found))
    return ready


def _filled(row: SlotRow, found: Digests | Unreadable) -> SlotRow:
    if isinstance(found, Unreadable):
        values = [*row[:_MIX64], 0, 0, 0, 0, False, *row[_AFTER:]]
        values[_STATUS] = _UNREADABLE
        return SlotRow._make(values)
    return SlotRow._make((*row[:_MIX64], found.mix64, found.value64, found.bag64, found.xor32, found.trivial, *row[_AFTER:]))


def resolve(event: EventRow, slots: Sequence[SlotRow]) -> Resolved | None:
    """Put digests in place of promises; None while one is on its way. Cost: 0.1 us a slot and 1 us a promise."""
    rows: list[SlotRow] = []
    lost: list[tuple[str, bool]] = []
    num_undeclared, t_device_ns = 0, None
    for slot in slots:
        promise: Any = slot.mix64
        if type(promise) is int:
            rows.append(slot)
            continue
        found = promise.look()
        if found is None:
            return None
        if isinstance(found, Unchanged):
            continue
        if isinstance(found, Unreadable):
            lost.append((found.reason, slot.storage is None or bool(slot.name)))
        elif isinstance(promise, Difference):
            num_undeclared += promise.undeclared
        if isinstance(promise, Difference) and isinstance(found, Unreadable):
            continue  # whether it was written is not known: a gap, not a slot
        if slot.direction in _WRITTEN and slot.status == _PROBED and promise.t_device_ns is not None:
            t_device_ns = promise.t_device_ns
        rows.append(_filled(slot, found))
    if t_device_ns is not None:
        event = event._replace(t_device_ns=t_device_ns)
    return Resolved(event, rows, lost, num_undeclared)


class DeferredSink:
    """Meets `protocol.EventSink`; hands events on in order, each once its promises are kept.

    Until the first promise of the process is made, events pass straight through: a training that never meets a device starts no
    thread and pays one comparison an event.

    Args:
        sink: Gets plain rows, from one thread of ours.
    """

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._coverage: Coverage | None = None
        self._waiting: deque[tuple[EventRow, Sequence[SlotRow]]] = deque()
        # Given up however deeply it is held while somebody waits: a signal handler may interrupt any method here.
        self._changed = threading.Condition(threading.RLock())
        self._moving = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started = self._stopping = self._closed = self._pressed = False
        self._pid = os.getpid()
        self._rows_in = self._rows_out = 0  # by emitters, which the outbox lets in one by one; by the one who moves
        self._stuck_at = -1  # rows handed on when the bound was given up
        self.num_deferred = self.num_held_back = self.num_given_up = 0
        _live.add(self)

    def count_in(self, coverage: Coverage) -> None:
        """Say where lost digests are counted, before the first event."""
        self._coverage = coverage

    # EventSink.

    def emit(self, event: EventRow, slots: Sequence[SlotRow]) -> None:
        """Queue one event; waits only while `MAX_WAITING` rows do. Calls come one by one. Cost: 0.3 us."""
        if not self._started:
            if not any_made() or self._closed:
                self._sink.emit(event, slots)
                return
            self._start()
        waiting = self._waiting
        waiting.append((event, slots))
        self._rows_in += 1 + len(slots)
        if self._rows_in - self._rows_out >= MAX_WAITING:
            self._hold_back()
        elif not len(waiting) % CHUNK_EVENTS:
            with self._changed:
                self._changed.notify_all()

    def frame(self, row: FrameRow) -> None:
        """As `EventSink.frame`: at once, so before every event that needs it."""
        self._sink.frame(row)

    def stack(self, stack: int, frames: Sequence[int]) -> None:
        """As `EventSink.stack`, at once."""
        self._sink.stack(stack, frames)

    def lifetime(self, row: LifetimeRow) -> None:
        """As `EventSink.lifetime`, at once."""
        self._sink.lifetime(row)

    def source(self, digest: str, text: str) -> None:
        """As `EventSink.source`, at once."""
        self._sink.source(digest, text)

    # The waiting thread.

    def _start(self) -> None:
        with self._changed:
            self._started, self._stopping = True, False
            thread = threading.Thread(target=self._run, name="opguard-digests", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread to be had: emitters hand on what has come whenever much waits
                thread = None  # type: ignore[assignment]
            self._thread = thread

    def _run(self) -> None:
        block_signals()
        while True:
            with self._changed:
                if self._stopping:
                    return
                if not self._pressed:
                    self._changed.wait(LOOK_S)
            self._move()
            if self._pressed:
                self._wait_for_head()

    def _move(self) -> int:
        """Hand on every event whose digests have come; returns their number. Does nothing while another thread does it."""
        if not self._moving.acquire(blocking=False):
            return 0
        count = 0
        try:
            self._collect()
            waiting = self._waiting
            while waiting:
                event, slots = waiting[0]
                ready = self._resolve(event, slots)
                if ready is None:
                    break
                self._account(ready)
                self._sink.emit(ready.event, ready.slots)
                waiting.popleft()
                self._rows_out += 1 + len(slots)
                count += 1
        finally:
            self._moving.release()
        self.num_deferred += count
        if count and self._pressed:
            with self._changed:
                self._changed.notify_all()
        return count

    def _collect(self) -> None:
        try:
            backends.collect()
        except Exception as error:  # noqa: BLE001  on a thread of ours: what does not come is lost in the end, and counted
            self._gap("collect", error, None)

    def _resolve(self, event: EventRow, slots: Sequence[SlotRow]) -> Resolved | None:
        try:
            return resolve(event, slots)
        except Exception as error:  # noqa: BLE001  on a thread of ours: later events must not wait for this one for ever
            self._gap("resolve", error, event.seq)
            rows = [slot if type(slot.mix64) is int else _filled(slot, Unreadable("internal error")) for slot in slots]
            return Resolved(event, rows, [], 0)

    def _gap(self, where: str, error: Exception, seq: int | None) -> None:
        if self._coverage is not None:
            self._coverage.gap("internal-error", f"{where}: {type(error).__name__}: {error}", touches_state=True, seq=seq)

    def _account(self, ready: Resolved) -> None:
        if self._coverage is None:
            return
        for reason, touches_state in ready.lost:
            self._coverage.gap(LOST_DIGESTS, reason, touches_state=touches_state, seq=ready.event.seq)
        for _ in range(ready.num_undeclared):
            self._coverage.count("undeclared_writes")

    def _wait_for_head(self, timeout_s: float = LOOK_S) -> None:
        """Wait a while for what the oldest event lacks."""
        try:
            _, slots = self._waiting[0]
        except IndexError:
            return
        for slot in slots:
            promise: Any = slot.mix64
            if isinstance(promise, Promise) and promise.look() is None:
                promise.wait(timeout_s)
                return

    def _hold_back(self) -> None:
        """The queue is full: the emitter waits until the copier has brought some digests.

        If it brings none for a minute the bound is given up until it does: a training must not end because of us.
        """
        if self._rows_out == self._stuck_at:
            return
        self.num_held_back += 1
        with self._changed:
            self._pressed = True
            seen, since_s = self._rows_out, time.monotonic()
            while self._rows_in - self._rows_out >= MAX_WAITING and not self._closed:
                if self._rows_out != seen:
                    seen, since_s = self._rows_out, time.monotonic()
                elif time.monotonic() - since_s > PATIENCE_S:
                    self._stuck_at = seen
                    break
                self._changed.notify_all()
                if self._thread is None:
                    self._move()
                    self._wait_for_head()
                else:
                    self._changed.wait(LOOK_S)
            self._pressed = False

    def _stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def close(self) -> None:
        """Wait for all digests and hand all events on; later ones pass through. A second call does nothing.

        Waits for the device. After `PATIENCE_S` without any delivery everything that has not come is given up at once: lost, counted
        as gaps, and told by `report`.
        """
        if self._pid != os.getpid():
            return
        self._stop()
        submit_asked()
        seen, since_s = -1, time.monotonic()
        while self._waiting:
            if self._move():
                continue
            if (delivered := num_delivered() + self._rows_out) != seen:
                seen, since_s = delivered, time.monotonic()
            elif time.monotonic() - since_s > PATIENCE_S:
                self._give_up()
                continue
            self._wait_for_head()
        self._closed, self._started = True, False
        with self._changed:
            self._changed.notify_all()

    def _give_up(self) -> None:
        """Nothing comes any more: lose what every event still lacks."""
        for _, slots in list(self._waiting):
            for slot in slots:
                promise: Any = slot.mix64
                if isinstance(promise, Promise) and promise.look() is None:
                    self.num_given_up += 1
                    promise.lose(f"{LOST} within {PATIENCE_S:g} s")

    def report(self) -> dict[str, Any]:
        """What goes into the manifest beside the backends' own facts; ``given_up``: promises that `close` waited for in vain."""
        given_up = {"given_up": self.num_given_up, "waited_s": PATIENCE_S} if self.num_given_up else {}
        return {"events_deferred": self.num_deferred, "held_back": self.num_held_back, **given_up}

    # Around os.fork(): as `trace.writer`, whose thread ends after ours and starts before it.

    def _before_fork(self) -> None:
        if self._started:
            self._stop()

    def _after_fork_in_parent(self) -> None:
        if self._started and not self._closed:
            self._start()

    def _after_fork_in_child(self) -> None:
        self._changed, self._moving = threading.Condition(threading.RLock()), threading.Lock()
        self._waiting = deque(maxlen=0)
        self._thread, self._started, self._closed = None, False, True


_live: weakref.WeakSet[DeferredSink] = weakref.WeakSet()


stop_around_forks(_live)
