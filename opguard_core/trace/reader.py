"""Reading a trace: bytes that were only promised become rows that are known to be right, or one error.

    Run.open(DIR) -> Run -> .ranks[r] -> RankTrace -> iter_windows() -> WindowTable

Size, name, digest, schema and every index of a segment are checked before its rows are handed out. A trace that stops
early is not an error: `torn` says why, and the prefix is read. Never pickle, never a path from the trace itself.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from opguard_core.errors import CorruptSegment, NotATrace, TraceFormatError, UnsupportedVersion
from opguard_core.trace.assemble import WindowAssembler
from opguard_core.trace.codec import decode_segment
from opguard_core.trace.columns import Columns, StringTables, empty_columns, to_columns
from opguard_core.trace.extent import Extent, read_extent
from opguard_core.trace.files import read_checked
from opguard_core.trace.index import Group, SegmentEntry
from opguard_core.trace.lookups import FrameTable, LaunchTable, LifetimeTable, StackTable
from opguard_core.trace.manifest import MANIFEST_NAME, RankManifest, RunManifest, read_run_manifest
from opguard_core.trace.problems import TornTail, refusal
from opguard_core.trace.schema import EventRow, SlotRow
from opguard_core.trace.sources import SOURCES_NAME, read_source
from opguard_core.trace.window import WindowTable

MAX_SEGMENT_BYTES = 1 << 30
_RANK_FOLDER = re.compile(r"rank-(\d{5,9})")


class Run:
    """One run: its manifest and the traces of its ranks. Make one with `Run.open`.

    Attributes:
        path: The run's folder.
        manifest: Facts about the run; all defaults when `torn` says that there is no readable manifest.
        torn: Why the run's own record is missing or unfinished, or None. Says nothing about the ranks' rows.
        ranks: Trace of each rank, by global rank.
    """

    def __init__(self, path: Path, manifest: RunManifest, torn: TornTail | None, ranks: dict[int, RankTrace]) -> None:
        self.path = path
        self.manifest = manifest
        self.torn = torn
        self.ranks = ranks

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """Open a run's folder; reads manifests and indexes, no segment.

        Raises:
            NotATrace: There is no rank folder in it.
            UnsupportedVersion: A newer release wrote it.
            TraceFormatError: It is damaged in a way that could make rows wrong.
        """
        path = Path(path)
        folders = _rank_folders(path)
        torn = None
        try:
            manifest = read_run_manifest(path)
            if not manifest.complete:
                torn = TornTail("not-finished", f"The launcher of {path} did not finish.", 0, str(path / MANIFEST_NAME))
        except UnsupportedVersion:
            raise
        except TraceFormatError as error:
            manifest = RunManifest()
            slug = "manifest-damaged" if os.path.lexists(path / MANIFEST_NAME) else "no-manifest"
            torn = TornTail(slug, error.message, 0, str(path / MANIFEST_NAME))
        return cls(path, manifest, torn, {rank: RankTrace.open(folder) for rank, folder in folders.items()})

    @property
    def missing_ranks(self) -> list[int]:
        """Ranks that the manifest names and that left no trace."""
        return [rank for rank in self.manifest.ranks if rank not in self.ranks]

    def source(self, digest: str) -> str:
        """Text of an executed source file by the ``source`` column of its frames.

        Raises:
            TraceFormatError: It is not stored, or not what its name says.
        """
        return read_source(self.path / SOURCES_NAME, digest)


def _rank_folders(path: Path) -> dict[int, Path]:
    try:
        named = [(entry, match) for entry in sorted(path.iterdir()) if (match := _RANK_FOLDER.fullmatch(entry.name))]
        links = [entry for entry, _ in named if entry.is_symlink()]
        folders = {int(match.group(1)): entry for entry, match in named if entry.is_dir()}
    except (OSError, ValueError) as error:
        raise refusal(NotATrace, "Cannot open", path=path, expected="a trace folder", found=str(error)) from error
    if links:
        raise refusal(TraceFormatError, "Rank folder is a link", path=links[0], expected="a folder", found="a symbolic link")
    if not folders:
        is_rank = _RANK_FOLDER.fullmatch(path.name)
        hint = "This is the folder of one rank: name the folder around it." if is_rank else "Name the folder that was given to `--out`."
        raise refusal(NotATrace, "No ranks in this folder", path=path, expected="rank-00000 or others", found="none", hint=hint)
    return folders


class RankTrace:
    """The trace of one rank. Make one with `RankTrace.open`, or take it from `Run.ranks`.

    Attributes:
        path: The rank's folder.
        manifest: Facts about the rank; all defaults if it is missing or damaged.
        torn: Why the trace stops early (a `TornTail`), or None if it holds all that was emitted, less `dropped`.
        dropped: Inclusive ranges of ``seq`` that were lost, exactly counted by the writer.
        num_events: Rows in the readable prefix.
        num_slots: As ``num_events``, for slots.
        strings: String tables of all dictionary columns of events and slots; they fill while windows are read.
    """

    def __init__(self, path: Path, extent: Extent) -> None:
        self.path = path
        self.manifest: RankManifest = extent.manifest
        self.torn: TornTail | None = extent.torn
        self.dropped = extent.dropped
        self.strings = StringTables()
        self._groups = extent.groups
        self._last_windows: dict[str, int] = {}
        self._tables: dict[int, WindowTable] = {}
        self.num_events = sum(entry.rows for group in self._groups if (entry := group.of("events")))
        self.num_slots = sum(entry.rows for group in self._groups if (entry := group.of("slots")))

    @classmethod
    def open(cls, path: Path) -> RankTrace:
        """Open a rank's folder; reads its manifest or index and the sizes of its segments. Errors as `Run.open`."""
        return cls(path, read_extent(path))

    def iter_windows(self) -> Iterator[WindowTable]:
        """Yield the windows in order.

        A row whose window is below one already seen (a thread that began earlier) stays with the window it was recorded in.

        Raises:
            CorruptSegment: A segment is not what the trace promised; windows before it were yielded and are right.

        Cost: one segment and one window in memory at a time.
        """
        assembler = WindowAssembler(self.strings, self.dropped)
        for group in self._groups:
            yield from assembler.feed(*self._read_group(group))
        yield from assembler.finish(whole=self.torn is None)

    def window(self, number: int) -> WindowTable | None:
        """One window by number, as `iter_windows` gives it; None if the prefix does not hold it.

        Cost: the events of a few segments to find it, then only the segments it lies in.
        """
        with_events = [group for group in self._groups if group.of("events")]
        position = bisect.bisect_left(with_events, number, key=self._last_window)
        before = self._last_window(with_events[position - 1]) if position else None
        if position == len(with_events):
            return None
        previous = with_events[position - 1].of("events") if position else None
        assembler = WindowAssembler(self.strings, self.dropped, first_seq=previous.last_seq + 1 if previous else 0, window=before)
        for group in with_events[position:]:
            for table in assembler.feed(*self._read_group(group)):
                if table.window >= number:
                    return table if table.window == number else None
        return next((table for table in assembler.finish(whole=self.torn is None) if table.window == number), None)

    def window_span(self) -> tuple[int, int] | None:
        """Smallest and largest window number of the readable prefix, or None if it holds no event.

        Cost: reads the first and the last segment of events.
        """
        entries = [entry for group in self._groups if (entry := group.of("events"))]
        if not entries:
            return None
        first, last = (self._read(entry).column("window").to_numpy() for entry in (entries[0], entries[-1]))
        return int(first.min()), int(last.max())

    def _last_window(self, group: Group) -> int:
        """Largest window number of a group; read once."""
        entry = group.of("events")
        assert entry is not None
        if entry.file not in self._last_windows:
            self._last_windows[entry.file] = int(self._read_columns("events", entry)["window"].max())
        return self._last_windows[entry.file]

    def event_at(self, seq: int) -> tuple[EventRow, list[SlotRow]] | None:
        """One event and its slots by number, or None if the prefix does not hold it.

        Cost: reads one group of segments; neighbours are then at hand.
        """
        for group in self._groups:
            entry = group.of("events")
            if entry is not None and entry.first_seq <= seq <= entry.last_seq:
                table = self._group_table(group, entry.first_seq)
                index = table.index_of(seq)
                return None if index is None else (table.event(index), table.slots_of(index))
        return None

    @functools.cached_property
    def frames(self) -> FrameTable:
        """Frames by id."""
        return FrameTable(self._read_interned("frames"))

    @functools.cached_property
    def stacks(self) -> StackTable:
        """Stacks by id, outermost frame first."""
        stacks = StackTable(self._read_interned("stacks"))
        if len(stacks.values) and int(stacks.values.max()) >= len(self.frames):
            raise refusal(
                CorruptSegment,
                "Stack of unknown frames",
                path=self.path,
                expected=f"below {len(self.frames)}",
                found=int(stacks.values.max()),
            )
        return stacks

    @functools.cached_property
    def lifetimes(self) -> LifetimeTable:
        """Storage lifetimes by serial."""
        return LifetimeTable(self._read_interned("lifetimes"))

    @functools.cached_property
    def launches(self) -> LaunchTable:
        """Device work by event; rows may name events beyond the readable prefix. Empty in traces that have no such table."""
        return LaunchTable(self._read_interned("launches"))

    def _read(self, entry: SegmentEntry) -> Any:
        return read_segment(self.path, entry)

    def _read_interned(self, table: str) -> list[Any]:
        decoded = []
        expected = 0
        for group in self._groups:
            entry = group.of(table)
            if entry is None:
                continue
            part = self._read(entry)
            if table in ("frames", "stacks"):
                ids = part.column(0).to_numpy()
                if not np.array_equal(ids, np.arange(expected, expected + len(ids))):
                    raise refusal(
                        CorruptSegment, f"Ids of {table} not dense", path=self.path / entry.file, expected=f"from {expected}", found=ids[:4]
                    )
                expected += len(ids)
            decoded.append(part)
        return decoded

    def _read_group(self, group: Group) -> tuple[Columns, Columns, Path]:
        events = self._read_columns("events", group.of("events"))
        slots = self._read_columns("slots", group.of("slots"))
        entry = group.of("events")
        return events, slots, self.path / entry.file if entry else self.path

    def _read_columns(self, table: str, entry: SegmentEntry | None) -> Columns:
        if entry is None:
            return empty_columns(table)
        columns = to_columns(table, self._read(entry), self.strings)
        first, last = int(columns["seq"][0]), int(columns["seq"][-1])
        if (first, last) != (entry.first_seq, entry.last_seq):
            raise refusal(
                CorruptSegment,
                "Segment of other events",
                path=self.path / entry.file,
                expected=f"seq {entry.first_seq} to {entry.last_seq}",
                found=f"{first} to {last}",
            )
        return columns

    def _group_table(self, group: Group, first_seq: int) -> WindowTable:
        if first_seq not in self._tables:
            assembler = WindowAssembler(self.strings, self.dropped, first_seq=first_seq)
            self._tables = {first_seq: assembler.table_of(*self._read_group(group))}  # one at a time
        return self._tables[first_seq]


def read_segment(folder: Path, entry: SegmentEntry) -> Any:
    """Read and check one segment: size, digest, then the Arrow file itself.

    Returns:
        A pyarrow Table.

    Raises:
        CorruptSegment: It is not what ``entry`` promises.
    """
    path = folder / entry.file
    try:
        data = read_checked(path, limit=MAX_SEGMENT_BYTES, expected_bytes=entry.bytes)
    except TraceFormatError as error:
        raise CorruptSegment(error.message, **error.facts) from error
    found = hashlib.sha256(data).hexdigest()
    if found != entry.sha256:
        raise refusal(CorruptSegment, "Segment changed after it was written", path=path, expected=f"sha256 {entry.sha256}", found=found)
    return decode_segment(entry.table, data, rows=entry.rows, path=path)
