"""What the supervisor tells while it works: lines in the log, the phase and its steps in ``state.json``, signs of life.

A thread beats, writes what has changed, and looks whether somebody asked for the end; the work itself never waits for a disk.
"""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from types import TracebackType
from typing import Any

from opguard_harness.config import HEARTBEAT_S, now
from opguard_harness.jobs.folder import JobFolder
from opguard_harness.report.progress import Progress

_LOOK_S = 0.25
_WRITE_S = 1.0  # steps are written this often; what a reader has to know at once is written at once
_AT_ONCE = ("phase", "waits")
_PHASE = re.compile(r"[a-z][a-z0-9 _-]{0,39}")


class Pulse:
    """Signs of life of one job, from a thread of its own, while used as a context manager."""

    def __init__(self, folder: JobFolder) -> None:
        """Nothing is told before ``with``."""
        self._folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, Any] = {}
        self._told: dict[str, Any] = {}
        self._over = False
        self._urgent = threading.Event()
        self._said = ""
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Pulse:
        """Tell that the work has begun, then start the thread."""
        self.tell(phase="starting", done=None, planned=None, waits="")
        self._folder.beat()
        self._flush()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop the thread; what it last told stays."""
        self._over = True
        self._urgent.set()
        self._thread.join()
        self._flush()

    def tell(self, **facts: Any) -> None:
        """Remember facts for the thread to write; costs no disk access."""
        with self._lock:
            urgent = any(self._known.get(name) != facts[name] for name in _AT_ONCE if name in facts)
            self._known.update(facts)
        if urgent:
            self._urgent.set()

    def _beat(self) -> None:
        """The thread."""
        beat_ns = written_ns = time.monotonic_ns()
        asked = False
        while not self._over:
            urgent = self._urgent.wait(_LOOK_S)
            self._urgent.clear()
            if not asked and self._folder.asked_to_end():
                asked = True
                # To the main thread, so that whatever it waits for is interrupted.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            try:
                if time.monotonic_ns() - beat_ns >= HEARTBEAT_S * 1e9:
                    beat_ns = time.monotonic_ns()
                    self._folder.beat()
                if urgent or time.monotonic_ns() - written_ns >= _WRITE_S * 1e9:
                    written_ns = time.monotonic_ns()
                    self._flush()
            except OSError as error:
                self._complain(f"note: how far this is cannot be written: {error.strerror}")

    def _flush(self) -> None:
        with self._lock:
            known = dict(self._known)
        if known != self._told:
            self._folder.write_state({**known, "at": now()})
            self._told = known

    def _complain(self, text: str) -> None:
        """Say something once."""
        if text != self._said:
            self._said = text
            sys.stderr.write(f"{text}\n")


class JobProgress(Progress):
    """Progress of a job's work."""

    def __init__(self, job: str, pulse: Pulse) -> None:
        """Lines go to standard error, which is the job's log."""
        super().__init__(sys.stderr)
        self.job = job
        self._pulse = pulse

    def tick(self, text: str) -> None:
        """Nothing: ``steps`` says how far it is."""

    def steps(self, phase: str, done: int | None, planned: int | None) -> None:
        """How far a program is."""
        assert _PHASE.fullmatch(phase), "phases are words of ours"
        self._pulse.tell(phase=phase, done=done, planned=planned)
