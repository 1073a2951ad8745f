"""The replay engine: emits a stored trace again, event for event.

Second implementation of the `Engine` protocol. It keeps the protocol honest (whatever the live engine can say must pass
through a trace and back unchanged) and turns stored traces into input for anything that takes an engine.
"""

from __future__ import annotations

from opguard_core.engines.protocol import EventSink
from opguard_core.errors import CaptureError, TraceFormatError
from opguard_core.trace.reader import RankTrace, Run
from opguard_core.trace.window import WindowTable


class ReplayEngine:
    """Emits the readable prefix of one rank's trace.

    Args:
        run: The run that holds it.
        rank: Global rank to emit.

    Raises:
        CaptureError: The run has no such rank.
    """

    name = "replay"

    def __init__(self, run: Run, rank: int) -> None:
        if rank not in run.ranks:
            raise CaptureError(
                f"The trace {run.path} has no rank {rank}.",
                slug="rank-missing",
                hint=f"It has the ranks {', '.join(map(str, sorted(run.ranks)))}.",
                rank=rank,
            )
        self._run = run
        self._trace: RankTrace = run.ranks[rank]
        self._num_events = 0
        self._failed = ""
        self._missing_sources: list[str] = []

    def start(self, sink: EventSink) -> None:
        """Emit everything, in order, in the calling thread.

        Raises:
            CaptureError: The trace cannot be read, noticed before the first event; later damage ends the replay and is
                said in the report.
        """
        try:
            self._emit_interned(sink)
            for window in self._trace.iter_windows():
                self._emit_window(window, sink)
        except TraceFormatError as error:
            if not self._num_events:
                raise CaptureError(f"Cannot replay {self._trace.path}: {error.message}", path=str(self._trace.path)) from error
            self._failed = error.message

    def _emit_interned(self, sink: EventSink) -> None:
        frames, stacks = self._trace.frames, self._trace.stacks
        digests = dict.fromkeys(row.source for row in frames if row.source)
        for digest in digests:
            try:
                sink.source(digest, self._run.source(digest))
            except TraceFormatError:
                # The rows are worth replaying without the text; the report says which texts are gone.
                self._missing_sources.append(digest)
        for row in frames:
            sink.frame(row)
        for stack, members in enumerate(stacks):
            sink.stack(stack, members.tolist())
        for lifetime in self._trace.lifetimes:
            sink.lifetime(lifetime)

    def _emit_window(self, window: WindowTable, sink: EventSink) -> None:
        for index in range(len(window)):
            sink.emit(window.event(index), window.slots_of(index))
            self._num_events += 1

    def stop(self) -> dict[str, object]:
        """Report what was replayed and what the stored trace could not give."""
        torn = self._trace.torn
        return {
            "active": True,
            "replayed": str(self._trace.path),
            "events": self._num_events,
            "torn": None if torn is None else {"slug": torn.slug, "text": torn.text, "next_seq": torn.next_seq},
            "dropped": [list(pair) for pair in self._trace.dropped],
            "failed": self._failed,
            "missing_sources": self._missing_sources,
        }
