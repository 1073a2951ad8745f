"""The trace writer of one rank: an `EventSink` whose work happens on a background thread.

    engine thread -> emit() -> Intake (bounded queue) -> writing thread -> Committer -> segments, index | manifest
    native observer -> its outbox (bounded) -> drain() ---------^

Nothing reaches the caller after construction: a full disk or a bad value is a counted drop. What a kill can lose is
bounded and stated, see `TraceWriter`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opguard_core.errors import FlushFailed
from opguard_core.ids import SENTINEL
from opguard_core.trace.batch import ColumnSource
from opguard_core.trace.codec import default_compression
from opguard_core.trace.commit import Committer
from opguard_core.trace.drops import complement
from opguard_core.trace.files import DIRECTORY_MODE
from opguard_core.trace.flush import SEGMENT_EVENTS, SEGMENT_SLOTS, Flusher
from opguard_core.trace.forks import stop_around_forks
from opguard_core.trace.index import INDEX_NAME, IndexWriter
from opguard_core.trace.intake import Intake, WhenFull
from opguard_core.trace.manifest import ENDED, RankManifest, write_manifest
from opguard_core.trace.schema import EventRow, FrameRow, LifetimeRow, SlotRow
from opguard_core.trace.sources import SOURCES_NAME
from opguard_core.trace.version import FORMAT_VERSION

DEFAULT_BUFFER_BYTES = 64 << 20
SENTINEL_PATIENCE = 30  # a commit costs about 16 kB whatever is in it: at most one a minute
_live: weakref.WeakSet[TraceWriter] = weakref.WeakSet()


class TraceWriter:
    """Writes one rank's trace; meets `engines.protocol.EventSink`.

    What a kill with -9 can lose: the events since the last window end, and windows that ended within the last 2 % of the
    run's time (at least 0.3 s, at most 2 s), unless `flush` was called after them. Never more than 2^15 events, 2^17 slots
    or 5 s of events, plus what waits in the queue (``buffer_bytes``) because the disk cannot follow. In mode ``sentinel``,
    whose steps are some rows each, the times are `SENTINEL_PATIENCE` times as long.

    Memory: ``buffer_bytes`` of rows and columns, plus one segment being compressed.

    Args:
        directory: The rank's folder, `DIR/rank-NNNNN`; made (0700) if absent, refused if another writer ever used it.
        rank: Global rank.
        world_size: Number of ranks.
        mode: One of `ids.MODES`.
        buffer_bytes: Budget of the queue, see `intake.Intake`.
        when_full: "wait" (default) or "drop".
        sources: Folder of source texts; default `sources` beside ``directory``.
        contract: Written to the manifest at once, so that a killed run has it too.
        segment_events: Rows at which a segment is closed inside a window.
        segment_slots: As ``segment_events``, for slots.

    Raises:
        FlushFailed: The folder cannot be written or belongs to another writer (before the first event only).
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        rank: int = 0,
        world_size: int = 1,
        mode: str = "full",
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        when_full: WhenFull = "wait",
        sources: Path | str | None = None,
        contract: Mapping[str, Any] | None = None,
        segment_events: int = SEGMENT_EVENTS,
        segment_slots: int = SEGMENT_SLOTS,
    ) -> None:
        self.directory = Path(directory).absolute()  # the training may change its working directory
        self._pid = os.getpid()
        self._manifest = RankManifest(
            rank=rank,
            world_size=world_size,
            pid=self._pid,
            mode=mode,
            contract=dict(contract or {}),
            compression=default_compression(),
        )
        self._index = self._claim()
        self._intake = Intake(buffer_bytes, when_full)
        self._committer = Committer(
            self.directory,
            Path(sources).absolute() if sources is not None else self.directory.parent / SOURCES_NAME,
            self._index,
            self._intake.ledger,
            self._manifest.compression,
        )
        self._flusher = Flusher(
            self._intake,
            self._committer,
            segment_events=segment_events,
            segment_slots=segment_slots,
            patience=SENTINEL_PATIENCE if mode == SENTINEL else 1,
        )
        self._finished = False
        self._close_lock = threading.RLock()
        try:
            self._flusher.start()
        except RuntimeError as error:
            raise FlushFailed(f"Cannot start the thread that writes the trace: {error}.", hint="Raise the limit on threads.") from error
        _live.add(self)
        # Exit handlers run while daemon threads still work, so a forgotten writer loses nothing.
        atexit.register(self._close_at_exit)

    def _claim(self) -> IndexWriter:
        header = {"format": FORMAT_VERSION, "rank": self._manifest.rank, "world_size": self._manifest.world_size}
        try:
            self.directory.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            self.directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
            if (self.directory / INDEX_NAME).exists():
                raise self._in_use()
            index = IndexWriter(self.directory, header)
            write_manifest(self.directory, self._manifest)
        except (OSError, TypeError) as error:
            if isinstance(error, FileExistsError) and self.directory.is_dir():
                raise self._in_use() from error  # another writer was faster just now
            raise FlushFailed(
                f"Cannot write the trace folder {self.directory}: {error}.",
                slug="trace-folder-unwritable",
                hint="Choose a writable folder with free space (--out).",
                path=str(self.directory),
            ) from error
        return index

    def _in_use(self) -> FlushFailed:
        return FlushFailed(
            f"The folder {self.directory} already holds a trace.",
            slug="trace-folder-in-use",
            hint="Give every rank of every run a folder of its own (a fresh --out).",
            path=str(self.directory),
        )

    # EventSink: called by engines, from any thread.

    def emit(self, event: EventRow, slots: Sequence[SlotRow]) -> None:
        """Append one event and its slots (kept, not copied). Calls come in order of ``event.seq``.

        Cost: about 0.6 us; waits for the disk only when the buffer is full and ``when_full`` is "wait".
        """
        self._intake.put(event, slots)

    def frame(self, row: FrameRow) -> None:
        """Append one interned frame; ids are dense and come in order."""
        self._intake.put_frame(row)

    def stack(self, stack: int, frames: Sequence[int]) -> None:
        """Append one interned stack, outermost frame first; ids are dense and come in order."""
        self._intake.put_stack(stack, frames)

    def lifetime(self, row: LifetimeRow) -> None:
        """Append what is known of one storage, once."""
        self._intake.put_lifetime(row)

    def packed_lifetimes(self, rows: bytes) -> None:
        """As `lifetime`, for many at once, as records of `packed.LIFETIME`. Cost: one lock."""
        self._intake.put_packed_lifetimes(rows)

    def launches(self, batch: Any) -> None:
        """Append device work: a pyarrow RecordBatch of `schema.LAUNCHES`, at least one row. What the disk refuses is counted by rows."""
        self._intake.put_launches(batch)

    def source(self, digest: str, text: str) -> None:
        """Keep the text of one executed source file under `sources.source_digest(text)`."""
        self._intake.put_source(digest, text)

    # Control: called by the capture session.

    def pull_from(self, source: ColumnSource) -> None:
        """Take events as columns from a source, instead of by `emit`; before the first event, and for good.

        Order, memory bound, exact drops, commits at window ends and what a kill can lose stay as they are for rows; the source
        has a budget of its own in place of ``buffer_bytes``.
        """
        self._intake.pull_from(source)

    def flush(self) -> None:
        """Wait until everything emitted so far is durable or counted as lost."""
        self._intake.flush()

    def tell_contract(self, contract: Mapping[str, Any]) -> None:
        """Store the contract as far as it is known, so that others see it while the run goes on. Never raises for the disk.

        Cost: one small file written and synced; called once a run.
        """
        with self._close_lock:
            if self._finished or os.getpid() != self._pid:
                return
            self._manifest.contract = dict(contract)
            try:
                write_manifest(self.directory, self._manifest)
            except (OSError, TypeError) as error:
                self._intake.ledger.lose_other("manifest", f"{type(error).__name__}: {error}")

    def close(
        self,
        *,
        ended: str,
        engines: Mapping[str, Any] | None = None,
        coverage: Mapping[str, Any] | None = None,
        contract: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> RankManifest:
        """Write what is left, then the final manifest. Never raises for the disk; a second call changes nothing.

        Args:
            ended: How the training ended, one of `manifest.ENDED`.
            engines: Report of each engine by name.
            coverage: What could not be seen.
            contract: Replaces the contract given at the start.
            extra: Further manifest keys.

        Returns:
            The manifest. ``complete`` is False if it could not be stored (the reader then takes the index), or in a forked
            child, which writes nothing.
        """
        assert ended in ENDED, ended
        with self._close_lock:
            if self._finished or os.getpid() != self._pid:
                return self._manifest
            self._flusher.stop(closing=True)
            if self._finished:  # by a signal handler that interrupted the line above
                return self._manifest
            self._finished = True
            self._index.close()
            self._count_unaccounted()
            manifest = self._manifest
            manifest.engines, manifest.coverage = dict(engines or {}), dict(coverage or {})
            manifest.contract = manifest.contract if contract is None else dict(contract)
            manifest.extra = dict(extra or {})
            manifest.segments, manifest.drops = self._committer.segments, self._intake.ledger.total()
            manifest.ended, manifest.complete = ended, True
            try:
                write_manifest(self.directory, manifest)
            except (OSError, TypeError) as error:
                self._intake.ledger.lose_other("manifest", f"{type(error).__name__}: {error}")
                manifest.drops, manifest.complete = self._intake.ledger.total(), False
            atexit.unregister(self._close_at_exit)
            return manifest

    def _count_unaccounted(self) -> None:
        """Make the count exact even if the writing thread died of something unforeseen."""
        known = [(entry.first_seq, entry.last_seq) for entry in self._committer.segments if entry.table == "events"]
        for first, last in complement([*known, *self._intake.ledger.total().ranges], self._intake.next_seq):
            self._intake.ledger.lose(first, last, "writer-died")

    def _close_at_exit(self) -> None:
        self.close(ended="unknown")

    # Around os.fork(): see `trace.forks`; the child itself writes nothing.

    def _before_fork(self) -> None:
        self._flusher.stop(closing=False)

    def _after_fork_in_parent(self) -> None:
        with contextlib.suppress(RuntimeError):  # no thread to be had: closing counts what is lost
            self._flusher.start()

    def _after_fork_in_child(self) -> None:
        self._intake.reset_after_fork()
        self._close_lock = threading.RLock()
        with contextlib.suppress(OSError):
            self._index.close()


stop_around_forks(_live)
