"""Turns taken rows into segments on disk, one group at a time; runs on the writing thread only.

Nothing here raises for a full disk, a vanished folder or a value that does not fit its column: what cannot be stored is
counted with its exact range of ``seq``, and the next group is tried again.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from opguard_core.trace.batch import ColumnBatch, Drained
from opguard_core.trace.codec import encode_segment, to_batch
from opguard_core.trace.drops import DropLedger, complement
from opguard_core.trace.files import sync_directory, write_atomic
from opguard_core.trace.index import TABLE_NAMES, Group, IndexWriter, SegmentEntry, segment_name
from opguard_core.trace.intake import CHUNK_EVENTS, Taken
from opguard_core.trace.packed import lifetimes_batch
from opguard_core.trace.salvage import ENCODE_ERRORS, escaped, interned_batch
from opguard_core.trace.schema import EventRow, SlotRow
from opguard_core.trace.sources import write_source

Rows = Sequence[tuple[EventRow, Sequence[SlotRow]]]


STORE_ERRORS = (pa.ArrowException, OSError, MemoryError)


class Committer:
    """Collects rows and commits them as groups of segments.

    Args:
        directory: The rank's folder.
        sources: The run's folder of source texts.
        index: Open index of the rank.
        ledger: Where losses are counted.
        compression: Codec of the segments.
    """

    def __init__(self, directory: Path, sources: Path, index: IndexWriter, ledger: DropLedger, compression: str) -> None:
        self._directory = directory
        self._sources = sources
        self._index = index
        self._ledger = ledger
        self._compression = compression
        self._batches: dict[str, list[Any]] = {"events": [], "slots": [], "launches": []}
        self._interned: dict[str, list[tuple[Any, ...]]] = {"frames": [], "stacks": [], "lifetimes": []}
        self._packed: list[bytes] = []  # lifetimes before those of `_interned`
        self._num_committed = {"frames": 0, "stacks": 0, "lifetimes": 0, "launches": 0}
        self._next_seq = 0  # one past the last event that was committed or is known to be lost
        self._next_group = 0
        self.segments: list[SegmentEntry] = []
        self.num_events = 0  # not committed yet
        self.num_slots = 0
        self.held_bytes = 0

    def add_interned(self, taken: Taken) -> None:
        """Take over frames, stacks, lifetimes and launches, and store source texts. Comes before the events that refer to them."""
        for digest, text in taken.sources:
            try:
                write_source(self._sources, digest, text)
            except (OSError, ValueError) as error:
                self._ledger.lose_other("source", f"{type(error).__name__}: {error}")
        self._interned["frames"] += taken.frames
        self._interned["stacks"] += taken.stacks
        self._interned["lifetimes"] += taken.lifetimes
        self._packed += taken.packed_lifetimes
        self._batches["launches"] += taken.launches
        self.held_bytes += taken.interned_bytes

    def add_events(self, rows: Rows) -> None:
        """Convert rows to columns; the rows are not needed afterwards.

        Cost: about 0.9 us per event and per slot of interpreter lock, which is offered to others between tables and chunks.
        """
        for start in range(0, len(rows), CHUNK_EVENTS):
            self._convert(rows[start : start + CHUNK_EVENTS])
            _yield_lock()

    def add_columns(self, drained: Drained) -> int:
        """Take over events that came as columns, and their losses; returns the bytes now held for them.

        Cost: about 0.2 ms of interpreter lock whatever their number.
        """
        *_, (first, last), lost = drained
        for loss in lost:
            self._ledger.lose(*loss)
        try:
            batch = ColumnBatch.of(drained)
        except ENCODE_ERRORS as error:
            known = [(0, first - 1), *((lost_first, lost_last) for lost_first, lost_last, *_ in lost)]
            for missing in complement(known, last + 1):
                self._ledger.lose(*missing, "encode", f"{type(error).__name__}: {error}")
            return 0
        if batch.slots is not None:
            self._batches["slots"].append(batch.slots)
            self.num_slots += batch.slots.num_rows
        if batch.events is not None:
            self._batches["events"].append(batch.events)
            self.num_events += batch.events.num_rows
        self.held_bytes += batch.column_bytes
        return batch.column_bytes

    def _convert(self, rows: Rows) -> None:
        try:
            self._keep(rows)
        except ENCODE_ERRORS as error:
            # One bad value must not take its neighbours with it.
            if len(rows) > 1:
                self._convert(rows[: len(rows) // 2])
                self._convert(rows[len(rows) // 2 :])
            else:
                self._convert_alone(*rows[0], f"{type(error).__name__}: {error}")

    def _convert_alone(self, event: EventRow, slots: Sequence[SlotRow], error: str) -> None:
        try:
            self._keep([(EventRow(*escaped(event)), [SlotRow(*escaped(slot)) for slot in slots])])
        except ENCODE_ERRORS:
            self._ledger.lose(event.seq, event.seq, "encode", error)

    def _keep(self, rows: Rows) -> None:
        events = to_batch("events", [event for event, _ in rows])
        _yield_lock()
        flat = [slot for _, slots in rows for slot in slots]
        slots = to_batch("slots", flat) if flat else None
        if slots is not None:
            _check_owner(rows, slots)
            self._batches["slots"].append(slots)
            self.num_slots += slots.num_rows
            self.held_bytes += slots.nbytes
        self._batches["events"].append(events)
        self.num_events += events.num_rows
        self.held_bytes += events.nbytes

    def commit(self) -> int:
        """Write everything collected as one group, make it durable and enter it in the index; or count it as lost.

        Returns:
            Bytes that were held and are no longer.
        """
        released, self.held_bytes = self.held_bytes, 0
        if not self.num_events and not any(self._interned.values()) and not self._packed and not self._batches["launches"]:
            return released
        group, self._next_group = self._next_group, self._next_group + 1
        kept = [run for batch in self._batches["events"] for run in _runs(batch.column(0).to_numpy())]
        self._account_for_holes(kept)
        written: list[SegmentEntry] = []
        dropped = self._ledger.take_fresh()
        try:
            for table in TABLE_NAMES:
                entry = self._write(table, group)
                if entry is not None:
                    written.append(entry)
            sync_directory(self._directory)
            self._index.append(Group(tuple(written), tuple(dropped)))
        except STORE_ERRORS as error:
            self._ledger.give_back(dropped)
            for first, last in kept:
                self._ledger.lose(first, last, "disk", f"{type(error).__name__}: {error}")
            if num_launches := sum(batch.num_rows for batch in self._batches["launches"]):
                self._ledger.lose_other("launches", count=num_launches)
            for table in TABLE_NAMES:
                with contextlib.suppress(OSError):
                    (self._directory / segment_name(table, group)).unlink()
        else:
            self.segments += written
            # Kept on failure: later events refer to these rows, and they are few.
            for entry in written:
                if entry.table in self._num_committed:
                    self._num_committed[entry.table] += entry.rows
            self._interned, self._packed = {table: [] for table in self._interned}, []
        self._batches = {"events": [], "slots": [], "launches": []}
        self.num_events = self.num_slots = 0
        return released

    def _account_for_holes(self, kept: list[tuple[int, int]]) -> None:
        """Record numbers that no engine ever emitted: a reader would refuse a hole that nobody vouches for."""
        if not kept:
            return
        stop = kept[-1][1] + 1
        known = [(0, self._next_seq - 1)] if self._next_seq else []
        for first, last in complement([*known, *kept, *self._ledger.total().ranges], stop):
            self._ledger.lose(first, last, "not-emitted")
        self._next_seq = stop

    def _write(self, table: str, group: int) -> SegmentEntry | None:
        first = self._num_committed.get(table)
        if table in self._interned:
            assert first is not None
            rows = self._interned[table]
            batch = interned_batch(table, rows, first, lambda error: self._ledger.lose_other(table, error)) if rows else None
            batches = [] if batch is None else [batch]
            if table == "lifetimes" and self._packed:
                batches.insert(0, lifetimes_batch(self._packed))
        else:
            batches = self._batches[table]
        if not batches:
            return None
        data = memoryview(encode_segment(table, batches, self._compression))
        num_rows = sum(batch.num_rows for batch in batches)
        if first is not None:
            extent = (first, first + num_rows - 1)
        else:
            extent = (batches[0].column(0)[0].as_py(), batches[-1].column(0)[-1].as_py())
        name = segment_name(table, group)
        write_atomic(self._directory / name, data)
        return SegmentEntry(name, table, num_rows, data.nbytes, hashlib.sha256(data).hexdigest(), *extent)


def _yield_lock() -> None:
    """Hand the interpreter lock to the training now; by itself it would change hands only every 5 ms.

    The pause is longer than it takes to wake a thread: after a shorter one this thread would have the lock again before the
    other is awake.
    """
    time.sleep(50e-6)


def _check_owner(rows: Rows, slots: Any) -> None:
    """Raise ValueError unless each slot carries the number of its event: a reader would refuse the whole segment."""
    counts = [len(event_slots) for _, event_slots in rows]
    owners = np.repeat(np.array([event.seq for event, _ in rows], np.uint64), counts)
    if not np.array_equal(owners, slots.column(0).to_numpy()):
        raise ValueError("a slot carries the seq of another event")


def _runs(seqs: Any) -> list[tuple[int, int]]:
    """Inclusive runs of consecutive numbers in a sorted array."""
    cuts = np.flatnonzero(np.diff(seqs) != 1) + 1
    return [(int(part[0]), int(part[-1])) for part in np.split(seqs, cuts) if len(part)]
