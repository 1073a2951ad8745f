"""Traces that never touch the disk, for tests of what comes after reading: hundreds of small runs in a second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from opguard_core.trace import schema
from opguard_core.trace.assemble import WindowAssembler
from opguard_core.trace.codec import to_batch
from opguard_core.trace.columns import StringTables, empty_columns, to_columns
from opguard_core.trace.lookups import FrameTable, LaunchTable, LifetimeTable, StackTable
from opguard_core.trace.manifest import RankManifest, RunManifest
from opguard_core.trace.problems import TornTail
from opguard_core.trace.reader import Run
from opguard_core.trace.schema import EventRow, FrameRow, LaunchRow, LifetimeRow, SlotRow
from opguard_core.trace.window import WindowTable


class MemoryWriter:
    """An `EventSink` that keeps rows."""

    def __init__(self, rank: int = 0, world_size: int = 1, mode: str = "verify") -> None:
        self.rows: dict[str, list[Any]] = {"events": [], "slots": [], "frames": [], "stacks": [], "lifetimes": [], "launches": []}
        self.manifest = RankManifest(rank=rank, world_size=world_size, mode=mode)

    def emit(self, event: EventRow, slots: Sequence[SlotRow]) -> None:
        self.rows["events"].append(event)
        self.rows["slots"] += slots

    def frame(self, row: FrameRow) -> None:
        self.rows["frames"].append(row)

    def stack(self, stack: int, frames: Sequence[int]) -> None:
        self.rows["stacks"].append((stack, list(frames)))

    def lifetime(self, row: LifetimeRow) -> None:
        self.rows["lifetimes"].append(row)

    def launches(self, batch: Any) -> None:
        self.rows["launches"] += [LaunchRow(*row.values()) for row in batch.to_pylist()]

    def source(self, digest: str, text: str) -> None:
        """Texts are not needed."""

    def close(self, *, ended: str, **facts: Any) -> RankManifest:
        self.manifest.ended, self.manifest.complete = ended, True
        for name, value in facts.items():
            setattr(self.manifest, name, value)
        return self.manifest


class MemoryTrace:
    """Stands for `trace.reader.RankTrace`.

    Args:
        writer: Rows.
        manifest: Of the rank.
        torn: As in a trace that stops early.
        dropped: Inclusive ranges of ``seq`` that were lost; their rows must not be there.
    """

    def __init__(
        self, writer: MemoryWriter, manifest: RankManifest, *, torn: TornTail | None = None, dropped: tuple[tuple[int, int], ...] = ()
    ) -> None:
        self.path = Path("memory")
        self.manifest, self.torn, self.dropped = manifest, torn, dropped
        self.strings = StringTables()
        self.num_events, self.num_slots = len(writer.rows["events"]), len(writer.rows["slots"])
        self._rows = writer.rows
        self.frames = FrameTable(self._decoded("frames"))
        self.stacks = StackTable(self._decoded("stacks"))
        self.lifetimes = LifetimeTable(self._decoded("lifetimes"))
        self.launches = LaunchTable(self._decoded("launches"))

    def _decoded(self, table: str) -> list[Any]:
        rows = self._rows[table]
        return [pa.Table.from_batches([to_batch(table, rows)], schema=schema.TABLES[table])] if rows else []

    def iter_windows(self) -> Iterator[WindowTable]:
        assembler = WindowAssembler(self.strings, self.dropped)
        columns = [
            to_columns(table, decoded[0], self.strings) if (decoded := self._decoded(table)) else empty_columns(table)
            for table in ("events", "slots")
        ]
        yield from assembler.feed(*columns, self.path)
        yield from assembler.finish(whole=self.torn is None)

    def window(self, number: int) -> WindowTable | None:
        return next((table for table in self.iter_windows() if table.window == number), None)


def memory_run(traces: Sequence[MemoryTrace], torn: TornTail | None = None, **facts: Any) -> Run:
    """A run of ranks kept in memory."""
    ranks = {trace.manifest.rank: trace for trace in traces}
    manifest = RunManifest(ranks=sorted(ranks), complete=True, **facts)
    return Run(Path("memory"), manifest, torn, ranks)  # type: ignore[arg-type]
