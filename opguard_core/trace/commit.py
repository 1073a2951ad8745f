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

from opguard_core.trace.codec import encode_segment, to_batch
from opguard_core.trace.drops import DropLedger
from opguard_core.trace.files import sync_directory, write_atomic
from opguard_core.trace.index import TABLE_NAMES, Group, IndexWriter, SegmentEntry, segment_name
from opguard_core.trace.intake import CHUNK_EVENTS, Taken
from opguard_core.trace.schema import EventRow, SlotRow
from opguard_core.trace.sources import write_source

Rows = Sequence[tuple[EventRow, Sequence[SlotRow]]]


ENCODE_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError)
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
        self._batches: dict[str, list[Any]] = {"events": [], "slots": []}
        self._interned: dict[str, list[tuple[Any, ...]]] = {"frames": [], "stacks": [], "lifetimes": []}
        self._num_lifetimes = 0
        self._next_group = 0
        self.segments: list[SegmentEntry] = []
        self.num_events = 0  # not committed yet
        self.num_slots = 0
        self.held_bytes = 0

    def add_interned(self, taken: Taken) -> None:
        """Take over frames, stacks and lifetimes, and store source texts. Comes before the events that refer to them."""
        for digest, text in taken.sources:
            try:
                write_source(self._sources, digest, text)
            except (OSError, ValueError) as error:
                self._ledger.lose_other("source", f"{type(error).__name__}: {error}")
        self._interned["frames"] += taken.frames
        self._interned["stacks"] += taken.stacks
        self._interned["lifetimes"] += taken.lifetimes
        self.held_bytes += taken.interned_bytes

    def add_events(self, rows: Rows) -> None:
        """Convert rows to columns; the rows are not needed afterwards.

        Cost: about 0.9 us per event and per slot of interpreter lock, which is offered to others between tables and chunks.
        """
        for start in range(0, len(rows), CHUNK_EVENTS):
            self._convert(rows[start : start + CHUNK_EVENTS])
            _yield_lock()

    def _convert(self, rows: Rows) -> None:
        try:
            events = to_batch("events", [event for event, _ in rows])
            _yield_lock()
            flat = [slot for _, slots in rows for slot in slots]
            slots = to_batch("slots", flat) if flat else None
            if slots is not None:
                _check_owner(rows, slots)
        except ENCODE_ERRORS as error:
            # One bad value must not take its neighbours with it.
            if len(rows) == 1:
                self._ledger.lose(rows[0][0].seq, rows[0][0].seq, "encode", f"{type(error).__name__}: {error}")
            else:
                self._convert(rows[: len(rows) // 2])
                self._convert(rows[len(rows) // 2 :])
            return
        self._batches["events"].append(events)
        self.num_events += events.num_rows
        self.held_bytes += events.nbytes
        if slots is not None:
            self._batches["slots"].append(slots)
            self.num_slots += slots.num_rows
            self.held_bytes += slots.nbytes

    def commit(self) -> int:
        """Write everything collected as one group, make it durable and enter it in the index; or count it as lost.

        Returns:
            Bytes that were held and are no longer.
        """
        released, self.held_bytes = self.held_bytes, 0
        if not self.num_events and not any(self._interned.values()):
            return released
        group, self._next_group = self._next_group, self._next_group + 1
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
            self._lose(f"{type(error).__name__}: {error}")
            for table in TABLE_NAMES:
                with contextlib.suppress(OSError):
                    (self._directory / segment_name(table, group)).unlink()
        else:
            self.segments += written
            # Kept on failure: later events refer to these rows, and they are few.
            self._num_lifetimes += len(self._interned["lifetimes"])
            self._interned = {table: [] for table in self._interned}
        self._batches = {"events": [], "slots": []}
        self.num_events = self.num_slots = 0
        return released

    def _write(self, table: str, group: int) -> SegmentEntry | None:
        if table in self._interned:
            rows = self._interned[table]
            batches = [to_batch(table, rows)] if rows else []
        else:
            batches = self._batches[table]
        if not batches:
            return None
        data = encode_segment(table, batches, self._compression)
        if table == "lifetimes":
            first, last = self._num_lifetimes, self._num_lifetimes + len(self._interned[table]) - 1
        else:
            first, last = batches[0].column(0)[0].as_py(), batches[-1].column(0)[-1].as_py()
        name = segment_name(table, group)
        view = memoryview(data)
        write_atomic(self._directory / name, view)
        num_rows = sum(batch.num_rows for batch in batches)
        return SegmentEntry(name, table, num_rows, data.size, hashlib.sha256(view).hexdigest(), first, last)

    def _lose(self, error: str) -> None:
        for batch in self._batches["events"]:
            # A batch may skip numbers that are counted already, so only what it holds is counted here.
            for run in _runs(batch.column(0).to_numpy()):
                self._ledger.lose(*run, "disk", error)


def _yield_lock() -> None:
    """Hand the interpreter lock to the training now; by itself it would change hands only every 5 ms."""
    time.sleep(0)


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
