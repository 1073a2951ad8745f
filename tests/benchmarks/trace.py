"""What a trace costs: the emitting thread, the writing thread, bytes on disk, reading: `python -m tests.benchmarks --only trace`.

"burst" emits as fast as Python can, so back pressure and the writing thread's share of the interpreter lock are all in it.
"paced" does about 60 us of work outside the lock before each event, as an operator does. Costs are what an event adds to the
loop against a sink that does nothing, as CPU time of each thread, which holds on a busy machine too.
"""

from __future__ import annotations

import gc
import hashlib
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from opguard_core.trace.reader import Run
from opguard_core.trace.writer import TraceWriter
from tests.benchmarks.report import Criterion, Section, cell, table
from tests.support.synthetic import GptShape, emit_side, gpt

PACE_BYTES = 1 << 16
TRACE_BYTES = 48  # a tensor, on disk


class Recorder:
    """Keeps what is emitted, in order of calls."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, Any]] = []
        self.others: list[tuple[str, tuple[Any, ...]]] = []

    def emit(self, event: Any, slots: Any) -> None:
        self.events.append((event, slots))

    def frame(self, *row: Any) -> None:
        self.others.append(("frame", row))

    def stack(self, *row: Any) -> None:
        self.others.append(("stack", row))

    def lifetime(self, *row: Any) -> None:
        self.others.append(("lifetime", row))

    def source(self, *row: Any) -> None:
        self.others.append(("source", row))


class Nothing(Recorder):
    """A sink that does nothing."""

    def emit(self, event: Any, slots: Any) -> None: ...


class Cost(NamedTuple):
    """Microseconds an event."""

    emitting_cpu: float
    writing_cpu: float


def emit_all(recorded: Recorder, sink: Any, pace: bytes | None) -> Cost:
    """Emit everything and close the sink; what the emitting thread spends, and all other threads."""
    emit = sink.emit
    gc.collect()
    cpu, process = time.thread_time(), time.process_time()
    if pace is None:
        for event, slots in recorded.events:
            emit(event, slots)
    else:
        for event, slots in recorded.events:
            hashlib.sha256(pace)
            emit(event, slots)
    emitting = time.thread_time() - cpu
    if isinstance(sink, TraceWriter):
        assert not sink.close(ended="exit").drops.events
    writing = time.process_time() - process - (time.thread_time() - cpu)
    return Cost(*(seconds / len(recorded.events) * 1e6 for seconds in (emitting, writing)))


def write(recorded: Recorder, folder: Path, mode: str, pace: bytes | None) -> Cost:
    """Cost of a real writer beyond that of a sink that does nothing."""
    bare = emit_all(recorded, Nothing(), pace)
    writer = TraceWriter(folder / "rank-00000", mode=mode)
    for kind, row in recorded.others:
        getattr(writer, kind)(*row)
    cost = emit_all(recorded, writer, pace)
    return Cost(*(full - empty for full, empty in zip(cost, bare, strict=True)))


def measure(folder: Path, *, progress: Callable[[str], None], steps: int = 40, layers: int = 8, repeat: int = 3) -> Section:
    """Cost of writing and reading synthetic events.

    Args:
        folder: Scratch space.
        progress: Told what is being done.
        steps: Steps of the synthetic training.
        layers: Its layers.
        repeat: How often; the least counts.
    """
    rows, disk, criteria = [], [], []
    for mode in ("full", "verify"):
        recorded = Recorder()
        emit_side(gpt(GptShape(layers=layers, steps=steps)), recorded, mode=mode)
        num_events = len(recorded.events)
        num_slots = sum(len(slots) for _, slots in recorded.events)
        for name, pace in (("burst", None), ("paced", bytes(PACE_BYTES))):
            progress(f"trace, mode {mode}, {name}")
            costs, reading = [], []
            for number in range(repeat):
                target = folder / f"{mode}-{name}-{number}"
                costs.append(write(recorded, target, mode, pace))
                start = time.thread_time()
                trace = Run.open(target).ranks[0]
                assert sum(len(window) for window in trace.iter_windows()) == num_events
                reading.append((time.thread_time() - start) / num_events * 1e6)
                segments = trace.manifest.segments
                shutil.rmtree(target)
            best = Cost(*(min(values) for values in zip(*costs, strict=True)))
            rows.append((mode, name, best.emitting_cpu, best.writing_cpu, min(reading)))
        size = Counter[str]()
        for entry in segments:
            size[entry.table] += entry.bytes
        parts = ", ".join(f"{name} {cell(num_bytes / num_slots)}" for name, num_bytes in sorted(size.items()))
        whole = sum(size.values()) / num_slots
        disk.append((mode, num_events, num_slots, whole, parts, len(segments)))
        criteria.append(Criterion(f"synthetic trace of mode {mode}, bytes a tensor", whole, TRACE_BYTES))
    return Section(
        how=(
            f"{disk[0][1]:,} synthetic events, the least of {repeat} runs, CPU microseconds an event per thread. Burst emits as fast as "
            "Python can, paced does about 60 us of work before each event, as an operator does."
        ),
        tables=[
            table(("mode", "emitting", "emitting thread, us", "writing thread, us", "reading with every check, us"), rows),
            table(("mode", "events", "tensors", "bytes on disk a tensor", "of it", "segments"), disk),
        ],
        criteria=criteria,
    )
