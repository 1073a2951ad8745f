"""Progress of long work: one rewritten line on a terminal, plain lines elsewhere, on standard error only."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from opguard_harness.report.escape import terminal


class Progress:
    """Says what goes on. A reader that went away silences it; the work goes on.

    Attributes:
        job: Id of the job whose work this is; empty outside of jobs.
    """

    job = ""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to ``stream``, by default standard error."""
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._closed = False
        self._width = 0
        self._began_ns = time.monotonic_ns()

    def say(self, text: str) -> None:
        """One line that stays."""
        self._put(f"{self._blank()}{terminal(text)}\n")
        self._width = 0

    def tick(self, text: str) -> None:
        """One line that the next one replaces; nothing unless this is a terminal."""
        if self._live:
            shown = terminal(text)[:79]  # a wrapped line could not be taken back
            self._put(f"{self._blank()}{shown}")
            self._width = len(shown)

    def steps(self, phase: str, done: int | None, planned: int | None) -> None:
        """How far a program is; the line of ``tick`` says it to people.

        Args:
            phase: What runs: "reference", "suspect", "run", or "comparing", which has no steps.
            done: Training steps it has made, None if nobody knows.
            planned: Steps it will make, None likewise.
        """

    def done(self) -> None:
        """Remove a line that ``tick`` left."""
        if self._width:
            self._put(self._blank())
            self._width = 0

    def _blank(self) -> str:
        """Back to the start of an emptied line."""
        return f"\r{' ' * self._width}\r" if self._width else ""

    def _put(self, text: str) -> None:
        if self._closed:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._closed = True


class Silent(Progress):
    """Progress of tool calls, which answer once."""

    def say(self, text: str) -> None:
        """Say nothing."""

    def tick(self, text: str) -> None:
        """Say nothing."""
