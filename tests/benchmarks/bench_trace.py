"""What a trace costs: the emitting thread, the writing thread, bytes on disk, reading. Prints the rows of RESULTS.md, section Trace.

    python -m tests.benchmarks.bench_trace [--steps 40] [--layers 8]

"burst" emits as fast as Python can, so back pressure and the writing thread's share of the interpreter lock are all in the
wall time. "paced" does about 60 us of work outside the lock before each event, as an operator does. Wall time is what an event
adds to the loop against a sink that does nothing; CPU time is counted per thread, and holds on a busy machine too.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from opguard_core.trace.reader import Run
from opguard_core.trace.writer import TraceWriter
from tests.support.synthetic import GptShape, emit_side, gpt

PACE_BYTES = 1 << 16


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

    wall: float
    emitting_cpu: float
    writing_cpu: float


def emit_all(recorded: Recorder, sink: Any, pace: bytes | None) -> Cost:
    """Emit everything and close the sink; what the emitting thread spends, and all other threads."""
    emit = sink.emit
    gc.collect()
    wall, cpu, process = time.perf_counter(), time.thread_time(), time.process_time()
    if pace is None:
        for event, slots in recorded.events:
            emit(event, slots)
    else:
        for event, slots in recorded.events:
            hashlib.sha256(pace)
            emit(event, slots)
    wall, emitting = time.perf_counter() - wall, time.thread_time() - cpu
    if isinstance(sink, TraceWriter):
        assert not sink.close(ended="exit").drops.events
    writing = time.process_time() - process - (time.thread_time() - cpu)
    return Cost(*(seconds / len(recorded.events) * 1e6 for seconds in (wall, emitting, writing)))


def write(recorded: Recorder, folder: Path, mode: str, pace: bytes | None) -> Cost:
    """Cost of a real writer beyond that of a sink that does nothing."""
    bare = emit_all(recorded, Nothing(), pace)
    writer = TraceWriter(folder / "rank-00000", mode=mode)
    for kind, row in recorded.others:
        getattr(writer, kind)(*row)
    cost = emit_all(recorded, writer, pace)
    return Cost(*(full - empty for full, empty in zip(cost, bare, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    for mode in ("full", "verify"):
        recorded = Recorder()
        emit_side(gpt(GptShape(layers=options.layers, steps=options.steps)), recorded, mode=mode)
        num_events = len(recorded.events)
        num_slots = sum(len(slots) for _, slots in recorded.events)
        print(f"mode {mode}: {num_events} events, {num_slots} slots, {num_slots / num_events:.1f} slots an event")
        for name, pace in (("burst", None), ("paced", bytes(PACE_BYTES))):
            costs, reading = [], []
            for _ in range(options.repeat):
                with tempfile.TemporaryDirectory() as folder:
                    costs.append(write(recorded, Path(folder), mode, pace))
                    start = time.thread_time()
                    trace = Run.open(folder).ranks[0]
                    assert sum(len(window) for window in trace.iter_windows()) == num_events
                    reading.append((time.thread_time() - start) / num_events * 1e6)
                    segments = trace.manifest.segments
            best = [min(values) for values in zip(*costs, strict=True)]
            print(
                f"  {name}: us an event: wall {best[0]:.1f}, emitting thread {best[1]:.1f}, writing thread {best[2]:.1f}, "
                f"reading {min(reading):.1f}"
            )
        size = Counter[str]()
        for entry in segments:
            size[entry.table] += entry.bytes
        parts = ", ".join(f"{table} {num_bytes / num_slots:.1f}" for table, num_bytes in sorted(size.items()))
        print(f"  disk: {sum(size.values()) / num_slots:.1f} bytes a slot ({parts}), {len(segments)} segments")


if __name__ == "__main__":
    main()
