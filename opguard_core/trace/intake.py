"""The bounded queue between the threads that emit and the thread that writes.

Hot path of the training process: `Intake.put` is all that an observed operator pays for being recorded, apart from the
writing thread's share of the interpreter lock.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from opguard_core.trace.batch import ColumnSource
from opguard_core.trace.drops import DropLedger
from opguard_core.trace.schema import EventRow, FrameRow, LifetimeRow, SlotRow

WhenFull = Literal["wait", "drop"]

# Python memory of one queued row: the tuple, and the integers and texts made for it (a test measures real rows).
EVENT_BYTES = 600
SLOT_BYTES = 640
FRAME_BYTES = 800
STACK_BYTES = 200
LIFETIME_BYTES = 200

# Wakes the writing thread, and is what it converts in one go: below it the fixed cost of a column shows, above it the
# training waits too long for the interpreter lock (about 2 ms).
CHUNK_EVENTS = 512


@dataclass
class Taken:
    """What the writing thread took out of the queue in one go."""

    events: list[tuple[EventRow, Sequence[SlotRow]]] = field(default_factory=list)
    frames: list[FrameRow] = field(default_factory=list)
    stacks: list[tuple[int, Sequence[int]]] = field(default_factory=list)
    lifetimes: list[LifetimeRow] = field(default_factory=list)
    packed_lifetimes: list[bytes] = field(default_factory=list)  # of `packed.LIFETIME`; older than ``lifetimes``
    launches: list[Any] = field(default_factory=list)  # record batches of LAUNCHES
    sources: list[tuple[str, str]] = field(default_factory=list)
    event_bytes: int = 0
    interned_bytes: int = 0
    window_ended: bool = False
    pressed: bool = False  # an emitter waits, or drops, for lack of room
    flush_ticket: int = 0
    stopping: bool = False  # the writing thread is to end after this
    closing: bool = False  # … and everything is to be committed


class Intake:
    """A queue with a byte budget, safe to call from any thread and from signal handlers.

    Args:
        budget_bytes: Estimated memory of everything queued or held by the writing thread. One event is always let in when
            nothing else is held, however large.
        when_full: "wait" stops the emitting thread until there is room; "drop" loses events, exactly counted, until half
            of the budget is free again (so that losses are few long ranges, not many short ones).

    Attributes:
        ledger: Where losses are counted.
        source: Where events come from instead of `put`, or None; set by `pull_from`.
    """

    def __init__(self, budget_bytes: int, when_full: WhenFull) -> None:
        self._budget_bytes = budget_bytes
        self._when_full = when_full
        # Re-entrant, and given up however deeply it is held while somebody waits: a signal handler or a finaliser may
        # interrupt any method here, and emit, flush or close in turn.
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self.ledger = DropLedger(lock)
        self._queue = Taken()
        self._held_bytes = 0  # queued, or taken and not yet released
        self._next_seq = 0
        self._window: int | None = None
        self._wake = False
        self._dropping = False
        self._num_waiting = 0
        self._flush_done = 0
        self._closed = False
        self._running = True  # a writing thread is there, or will be
        self.source: ColumnSource | None = None

    @property
    def next_seq(self) -> int:
        """One past the last ``seq`` that was offered."""
        return self._next_seq if self.source is None else max(self._next_seq, self.source.oldest_open)

    def pull_from(self, source: ColumnSource) -> None:
        """Have the writing thread take events from a source of columns from now on; before the first event."""
        with self._changed:
            self.source = source
            if self._closed:
                source.shut()
            else:
                source.attach()
            self._wake_writer()

    def put(self, event: EventRow, slots: Sequence[SlotRow]) -> None:
        """Queue one event; never raises, waits only when full. Calls come in order of ``seq``, so they never overlap.

        Cost: about 0.5 us, one lock, no copy: the caller must not change ``slots`` afterwards.
        """
        num_bytes = EVENT_BYTES + len(event.args) + SLOT_BYTES * len(slots)
        with self._changed:
            seq = event.seq
            if seq < self._next_seq or self.source is not None:
                self.ledger.lose_other("out-of-order")
                return
            self._next_seq = seq + 1
            crowded = self._dropping or self._held_bytes + num_bytes > self._budget_bytes
            if self._closed or (crowded and not self._make_room(num_bytes)):
                self.ledger.lose(seq, seq, "writer-closed" if self._closed else "buffer-full")
                return
            self._held_bytes += num_bytes
            queue = self._queue
            queue.event_bytes += num_bytes
            queue.events.append((event, slots))
            if event.window != self._window:
                queue.window_ended = queue.window_ended or self._window is not None
                self._window = event.window
                self._wake_writer()
            elif len(queue.events) >= CHUNK_EVENTS:
                self._wake_writer()

    def _make_room(self, num_bytes: int) -> bool:
        """With the lock held: wait for room, or deny it. True if the event may be queued."""
        if self._when_full == "drop":
            limit = self._budget_bytes // 2 if self._dropping else self._budget_bytes
            self._dropping = self._held_bytes > 0 and self._held_bytes + num_bytes > limit
            self._wake_writer()
            return not self._dropping
        self._num_waiting += 1
        try:
            while not self._closed and self._held_bytes > 0 and self._held_bytes + num_bytes > self._budget_bytes:
                self._wake_writer()
                self._changed.wait()
        finally:
            self._num_waiting -= 1
        return not self._closed

    def _wake_writer(self) -> None:
        if not self._wake:
            self._wake = True
            self._changed.notify_all()
            if self.source is not None:
                self.source.wake()

    def put_frame(self, row: FrameRow) -> None:
        """Queue one interned frame; always let in, counted against the budget."""
        with self._changed:
            self._queue.frames.append(row)
            self._hold(FRAME_BYTES + len(row.text) + len(row.statement))

    def put_stack(self, stack: int, frames: Sequence[int]) -> None:
        """Queue one interned stack; always let in, counted against the budget."""
        with self._changed:
            self._queue.stacks.append((stack, frames))
            self._hold(STACK_BYTES + 8 * len(frames))

    def put_lifetime(self, row: LifetimeRow) -> None:
        """Queue one storage's lifetime; always let in, counted against the budget."""
        with self._changed:
            self._queue.lifetimes.append(row)
            self._hold(LIFETIME_BYTES)

    def put_packed_lifetimes(self, rows: bytes) -> None:
        """As `put_lifetime`, for many at once, as records of `packed.LIFETIME`."""
        with self._changed:
            self._queue.packed_lifetimes.append(rows)
            self._hold(len(rows))

    def put_launches(self, batch: Any) -> None:
        """Queue one record batch of LAUNCHES; always let in, counted against the budget."""
        with self._changed:
            self._queue.launches.append(batch)
            self._hold(batch.nbytes)

    def put_source(self, digest: str, text: str) -> None:
        """Queue one source text; always let in, counted against the budget."""
        with self._changed:
            self._queue.sources.append((digest, text))
            self._hold(len(text))

    def _hold(self, num_bytes: int) -> None:
        self._held_bytes += num_bytes
        self._queue.interned_bytes += num_bytes

    def take(self, timeout_s: float | None) -> Taken:
        """Called by the writing thread: wait for work, then take all there is.

        Args:
            timeout_s: Return with whatever there is after this long; None waits for ever.
        """
        source = self.source
        if source is not None and not self._wake:
            source.wait(timeout_s)  # `_wake_writer` ends it, too, even before it begins
        with self._changed:
            if source is None and not self._wake:
                self._changed.wait_for(lambda: self._wake, timeout_s)
            self._wake = False
            taken, self._queue = self._queue, Taken(flush_ticket=self._queue.flush_ticket)
            taken.pressed = self._num_waiting > 0 or self._dropping
            return taken

    def take_interned(self) -> Taken:
        """Called by the writing thread after it has drained events: the interned rows that they may refer to, and no more."""
        with self._changed:
            queue = self._queue
            taken = Taken(
                frames=queue.frames,
                stacks=queue.stacks,
                lifetimes=queue.lifetimes,
                packed_lifetimes=queue.packed_lifetimes,
                launches=queue.launches,
                sources=queue.sources,
                interned_bytes=queue.interned_bytes,
            )
            queue.frames, queue.stacks, queue.lifetimes, queue.launches, queue.sources = [], [], [], [], []
            queue.packed_lifetimes = []
            queue.interned_bytes = 0
            return taken

    def release(self, num_bytes: int) -> None:
        """Called by the writing thread: this much is no longer held (negative: more is)."""
        with self._changed:
            self._held_bytes -= num_bytes
            self._changed.notify_all()

    def flushed(self, ticket: int) -> None:
        """Called by the writing thread: everything queued before this ticket is durable or counted as lost."""
        with self._changed:
            self._flush_done = max(self._flush_done, ticket)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything queued so far is durable or counted as lost."""
        with self._changed:
            if self._closed:
                return
            self._queue.flush_ticket += 1
            ticket = self._queue.flush_ticket
            self._wake_writer()
            self._changed.wait_for(lambda: self._flush_done >= ticket or not self._running)

    def stop(self, *, closing: bool) -> None:
        """Have the writing thread end, and wait until it takes no lock any more.

        Args:
            closing: Let nothing more in, and have everything committed; otherwise the queue goes on filling until `resume`.
        """
        with self._changed:
            self._closed = self._closed or closing
            self._queue.stopping = True
            self._queue.closing = self._queue.closing or closing
            self._wake_writer()
            self._changed.notify_all()  # also who waits for room
            self._changed.wait_for(lambda: not self._running)

    def resume(self) -> None:
        """Say that there is a writing thread again."""
        with self._changed:
            self._running = True

    def stopped(self, *, for_good: bool) -> None:
        """Called by the writing thread as its last act: free everybody who waits for it; ``for_good``, let nothing more in."""
        with self._changed:
            self._running = False
            if for_good:
                self._closed = True
                self._queue = Taken()
                self._held_bytes = 0
                if self.source is not None:
                    self.source.shut()
            self._changed.notify_all()

    def reset_after_fork(self) -> None:
        """In a forked child: be closed, hold nothing, and own a lock that no vanished thread holds."""
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self.ledger.reset_after_fork(lock)
        self._queue = Taken()
        self._closed = True
        self._running = False
        self._held_bytes = 0
        if self.source is not None:
            self.source.abandon_in_child()
