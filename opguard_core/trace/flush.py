"""The writing thread: takes what engines emitted, converts it, and decides when a group is committed."""

from __future__ import annotations

import signal
import threading
import time

from opguard_core.trace.batch import ColumnSource
from opguard_core.trace.commit import Committer
from opguard_core.trace.intake import Intake, Taken

SEGMENT_EVENTS = 1 << 15
SEGMENT_SLOTS = 1 << 17  # about 12 MB of columns

# Between two commits at window ends there is at least this long; it grows with the run, so that a long run of tiny steps
# does not end as a hundred thousand files.
FLUSH_PAUSE_MIN_S = 0.3
FLUSH_PAUSE_MAX_S = 2.0
FLUSH_PAUSE_SHARE = 0.02

STALE_S = 5.0  # commit after this long even if no window ended
ADD_EVENTS = 2048  # events converted between two looks at the size of the segment
DEVICE_PATIENCE_S = 30.0  # how long a flush or the end waits for digests of a device without any arriving
DEVICE_LOOK_S = 0.01


class Flusher:
    """Runs the writing thread; it can be stopped and started again around a fork.

    Args:
        intake: Where rows come from.
        committer: Where they go.
        segment_events: Rows at which a segment is closed inside a window.
        segment_slots: As ``segment_events``, for slots.
        patience: Factor on the pauses between two commits.
    """

    def __init__(self, intake: Intake, committer: Committer, *, segment_events: int, segment_slots: int, patience: int = 1) -> None:
        self._patience = patience
        self._intake = intake
        self._committer = committer
        self._segment_events = segment_events
        self._segment_slots = segment_slots
        self._thread: threading.Thread | None = None
        self._ended = False
        self._flushed_ticket = 0
        self._pulled_seq = 0  # one past the last event taken from a source
        self._source_bytes = 0  # columns that a source has given and that are not committed
        self._started_s = self._last_commit_s = time.monotonic()
        self._due_s = self._started_s + STALE_S * patience

    def start(self) -> None:
        """Start the thread, unless it ended for good.

        Raises:
            RuntimeError: The system allows no more threads; nobody will wait for this one.
        """
        if self._ended:
            return
        # A daemon, so that a writer that is never closed cannot keep the interpreter alive.
        thread = threading.Thread(target=self._run, name="opguard-trace-writer", daemon=True)
        self._intake.resume()
        try:
            thread.start()
        except RuntimeError:
            self._ended = True
            self._intake.stopped(for_good=True)
            raise
        self._thread = thread

    def stop(self, *, closing: bool) -> None:
        """Wait until the thread has ended; ``closing``, after it committed everything."""
        self._intake.stop(closing=closing)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        block_signals()
        for_good = True  # also if something unforeseen ends the loop
        try:
            while True:
                taken = self._intake.take(max(0.0, self._due_s - time.monotonic()))
                self._process(taken)
                if taken.stopping:
                    for_good = taken.closing
                    break
        finally:
            self._ended = for_good
            self._intake.stopped(for_good=for_good)

    def _process(self, taken: Taken) -> None:
        self._add(taken)
        source = self._intake.source
        if source is not None:
            self._pull(source, taken)
        if taken.window_ended:
            self._due_s = min(self._due_s, self._last_commit_s + self._pause_s())
        wanted = taken.closing or taken.pressed or taken.flush_ticket > self._flushed_ticket
        if wanted or time.monotonic() >= self._due_s:
            self._commit()
        self._flushed_ticket = taken.flush_ticket
        self._intake.flushed(taken.flush_ticket)

    def _pull(self, source: ColumnSource, taken: Taken) -> None:
        """Take all events that may leave; at the end, and for a flush, also those whose digests are still on their way."""
        committer = self._committer
        taken.pressed = taken.pressed or source.pressed
        patient = taken.closing or taken.flush_ticket > self._flushed_ticket
        target_seq = source.oldest_open
        given_up, last_s = False, time.monotonic()
        while True:
            drained = source.drain(max(1, min(ADD_EVENTS, self._segment_events - committer.num_events)))
            if drained is not None:
                # Rows that an event refers to were put before it was complete, so they are there by now.
                committer.add_interned(self._intake.take_interned())
                num_bytes = committer.add_columns(drained)
                self._source_bytes += num_bytes
                source.release(drained[2] - num_bytes)
                if committer.num_events >= self._segment_events or committer.num_slots >= self._segment_slots:
                    self._commit()
                self._pulled_seq, last_s = drained[4][1] + 1, time.monotonic()
            elif not patient or self._pulled_seq >= target_seq or given_up:
                break
            elif time.monotonic() - last_s < DEVICE_PATIENCE_S:
                source.wait(DEVICE_LOOK_S)
            else:
                given_up = True
                if taken.closing:
                    source.give_up()
        taken.window_ended = source.take_window_ended() or taken.window_ended
        taken.pressed = taken.pressed or source.pressed

    def _add(self, taken: Taken) -> None:
        committer, intake = self._committer, self._intake
        committer.add_interned(taken)
        rows, unreleased = taken.events, taken.event_bytes
        while rows:
            size = max(1, min(ADD_EVENTS, self._segment_events - committer.num_events))
            part, rows = rows[:size], rows[size:]
            share = unreleased * len(part) // (len(part) + len(rows))
            before = committer.held_bytes
            committer.add_events(part)
            unreleased -= share
            intake.release(share - (committer.held_bytes - before))
            if committer.num_events >= self._segment_events or committer.num_slots >= self._segment_slots:
                self._commit()

    def _pause_s(self) -> float:
        share = FLUSH_PAUSE_SHARE * (time.monotonic() - self._started_s)
        return self._patience * min(FLUSH_PAUSE_MAX_S, max(FLUSH_PAUSE_MIN_S, share))

    def _commit(self) -> None:
        released = self._committer.commit()
        source, of_source, self._source_bytes = self._intake.source, self._source_bytes, 0
        if source is not None:
            source.release(of_source)
            source.committed()
        self._intake.release(released - of_source)
        self._last_commit_s = time.monotonic()
        self._due_s = self._last_commit_s + STALE_S * self._patience


def block_signals() -> None:
    """Leave signals to the training's own threads, which are woken by them as they would be without us."""
    if hasattr(signal, "pthread_sigmask"):
        faults = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
