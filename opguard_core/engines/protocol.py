"""The one protocol every source of boundary events meets, and the sink it writes to.

Two implementations keep it honest: the live dispatch engine, and the replay engine that emits a stored trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from opguard_core.trace.schema import EventRow, FrameRow, LifetimeRow, SlotRow


@runtime_checkable
class EventSink(Protocol):
    """Where an engine puts what it saw; implemented by ``trace.writer.TraceWriter``.

    All methods may be called from any thread, return without waiting for the disk unless the bounded buffer is full,
    and never raise into the caller after the first event: a failed write becomes a counted drop.
    """

    def emit(self, event: EventRow, slots: Sequence[SlotRow]) -> None:
        """Append one event and its slots. Calls come in order of ``event.seq``."""

    def frame(self, row: FrameRow) -> None:
        """Append one interned frame; ids are dense and come in order."""

    def stack(self, stack: int, frames: Sequence[int]) -> None:
        """Append one interned stack, outermost frame first; ids are dense and come in order."""

    def lifetime(self, row: LifetimeRow) -> None:
        """Append what is known of one storage, once, when it is found dead or at the end."""

    def source(self, digest: str, text: str) -> None:
        """Keep the text of one executed source file under its sha256."""


class Engine(Protocol):
    """A source of boundary events for one rank."""

    name: str

    def start(self, sink: EventSink) -> None:
        """Begin emitting into ``sink``. Raises CaptureError before the first event, never after."""

    def stop(self) -> dict[str, object]:
        """Stop and report: what was active and what it could not see (goes into the rank manifest's ``engines``)."""
