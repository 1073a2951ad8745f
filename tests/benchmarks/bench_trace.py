"""What a trace costs: the emitting thread's time, bytes on disk, reading speed. Prints the rows of RESULTS.md, section Trace.

    python -m tests.benchmarks.bench_trace [--steps 40] [--layers 8]

"burst" emits as fast as Python can, so the writing thread's share of the interpreter lock and its back pressure are all in
the number. "paced" does 60 us of work outside the lock before each event, as an operator does; the number is what one event
adds to that loop against a sink that does nothing. Ratios within one run; absolute numbers depend on the machine.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

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


def emit_all(recorded: Recorder, sink: Any, pace: bytes | None) -> float:
    """Seconds that the emitting thread spends."""
    emit = sink.emit
    gc.collect()
    start = time.perf_counter()
    if pace is None:
        for event, slots in recorded.events:
            emit(event, slots)
    else:
        for event, slots in recorded.events:
            hashlib.sha256(pace)
            emit(event, slots)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    for mode in ("full", "verify"):
        recorded = Recorder()
        emit_side(gpt(GptShape(layers=options.layers, steps=options.steps)), recorded, mode=mode)
        num_events = len(recorded.events)
        num_slots = sum(len(slots) for _, slots in recorded.events)
        print(f"mode {mode}: {num_events} events, {num_slots} slots, {num_slots / num_events:.1f} slots an event")
        for name, pace in (("burst", None), ("paced", bytes(PACE_BYTES))):
            costs = []
            for _ in range(options.repeat):
                bare = emit_all(recorded, Nothing(), pace)
                with tempfile.TemporaryDirectory() as folder:
                    writer = TraceWriter(Path(folder) / "rank-00000", mode=mode)
                    for kind, row in recorded.others:
                        getattr(writer, kind)(*row)
                    emitting = emit_all(recorded, writer, pace)
                    start = time.perf_counter()
                    manifest = writer.close(ended="exit")
                    closing = time.perf_counter() - start
                    costs.append((emitting - bare) / num_events * 1e6)
                    assert not manifest.drops.events
                    start = time.perf_counter()
                    rows = sum(len(window) for window in Run.open(folder).ranks[0].iter_windows())
                    reading = time.perf_counter() - start
                    assert rows == num_events
            print(
                f"  {name}: {min(costs):.1f} us an event in the emitting thread (loop alone {bare / num_events * 1e6:.1f}), "
                f"close {closing * 1e3:.0f} ms, read {reading / num_events * 1e6:.2f} us an event"
            )
        size = Counter[str]()
        for entry in manifest.segments:
            size[entry.table] += entry.bytes
        parts = ", ".join(f"{table} {num_bytes / num_slots:.1f}" for table, num_bytes in sorted(size.items()))
        print(f"  disk: {sum(size.values()) / num_slots:.1f} bytes a slot ({parts}), {len(manifest.segments)} segments")


if __name__ == "__main__":
    main()
