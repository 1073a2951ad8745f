"""What observing costs a training step: ratios of step time, memory added, bytes of trace a tensor, entries into Python a step.

    python3 -m tests.gpu.step_time --part a [--rounds 3] [--steps 6] [--seconds 220] [--out FILE] [--details FILE]

Parts: (a) GPT of 12 layers, d768, T1024, B8: both engines, all modes, and torch's DebugMode with hashes once; (b) 8 layers, d2048,
T2048, B4: the native engine; (c) a Llama of Hugging Face of about a billion parameters: the native engine in trusted and full.
All in bfloat16 with the fused AdamW. `--compiled kernels` compiles the model with Inductor, bare and observed alike.

One process; each variant takes turns with the bare program, so that both meet the same clocks: a round is bare steps, then a session
with three steps that are not timed (first places, first buffers; called from the same line as the others, so that these have the same
stacks) and the timed ones. Step times are those between CUDA events that close each step; wall time is the round's, up to the last of
these events. A ratio is taken within its round; told is the median of rounds. The row of a variant is written when its rounds are done.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from opguard_core.capture.session import start
from opguard_core.plan.config import AUTO, COMPILED, RunConfig
from tests.gpu.models import SIZES, TINY, TITLES, training
from tests.gpu.rows import Rows, observers, where

MODES = ("sentinel", "trusted", "full", "verify")
VARIANTS = {
    "a": (*(("native", mode) for mode in MODES), *(("dispatch", mode) for mode in MODES[1:]), ("debugmode", "hashes")),
    "b": (("native", "trusted"), ("native", "full"), ("native", "verify")),
    "c": (("native", "trusted"), ("native", "full")),
}
COLUMNS = (
    "engine",
    "mode",
    "bare, ms a step",
    "ratio, events",
    "ratio, wall",
    "MiB added",
    "events a step",
    "trace bytes a tensor",
    "Python entries a step",
    "lost",
    "ran as",
)
UNTIMED = 3  # steps of a session
Step = Callable[[], torch.Tensor]


@dataclass
class Round:
    """Milliseconds of each step by the device's clock, and of a step by the wall."""

    device_ms: list[float]
    wall_ms: float


@dataclass
class Told:
    """What a session said of itself when it ended."""

    engines: dict[str, Any] = field(default_factory=dict)
    coverage: dict[str, Any] = field(default_factory=dict)
    trace: dict[str, Any] = field(default_factory=dict)
    peak_bytes: int = 0
    other_bytes: int = 0


def timed(step: Step, steps: int, device: torch.device) -> Round:
    """Time some steps; waits for the last one only."""
    if device.type == "cpu":
        marks = [time.perf_counter()]
        for _ in range(steps):
            step()
            marks.append(time.perf_counter())
        times = [(after - before) * 1e3 for before, after in itertools.pairwise(marks)]
        return Round(times, sum(times) / steps)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    begun = time.perf_counter()
    for event in events[1:]:
        step()
        event.record()
    events[-1].synchronize()
    wall = (time.perf_counter() - begun) * 1e3 / steps
    return Round([before.elapsed_time(after) for before, after in itertools.pairwise(events)], wall)


def memory(device: torch.device) -> tuple[int, int]:
    """(largest size of the program's tensors since the last reset, device memory that torch's allocator does not hold), bytes."""
    if device.type == "cpu":
        return 0, 0
    free, total = torch.cuda.mem_get_info()
    return torch.cuda.max_memory_allocated(), total - free - torch.cuda.memory_reserved()


@contextlib.contextmanager
def observed(engine: str, mode: str, device: torch.device, told: Told, level: str = AUTO) -> Iterator[None]:
    """Run the block under a variant; ``told`` is filled when it has ended."""
    if engine == "debugmode":
        from torch.utils._debug_mode import DebugMode

        with DebugMode(), DebugMode.log_tensor_hashes(hash_inputs=True):
            yield
            told.peak_bytes, told.other_bytes = memory(device)
        return
    with tempfile.TemporaryDirectory(prefix="opguard-step-time-") as scratch:
        session = start(RunConfig(run_dir=Path(scratch), user_root=Path.cwd(), mode=mode, engine=engine, compiled=level))
        try:
            yield
            told.peak_bytes, told.other_bytes = memory(device)
        finally:
            session.stop("exit")
        told.engines, told.coverage = session.engines, session.coverage
        manifest = next(Path(scratch).glob("rank-*/manifest.json"), None)
        told.trace = {} if manifest is None else json.loads(manifest.read_bytes())


def entries(told: Told, steps: int) -> float | None:
    """Entries into Python a step, the session's first one included; None for an engine that is Python."""
    found = next((report["python"] for report in told.engines.values() if isinstance(report, dict) and "python" in report), None)
    return None if found is None else float(found["total"]) / steps


def lost(told: Told) -> int:
    """Records that did not arrive: dropped by the writer, or not delivered by the device."""
    dropped = told.trace.get("drops", {}).get("events", 0)
    gaps = sum(value for key, value in _flat(told.coverage) if "lost" in key)
    digests = sum(value for key, value in _flat(told.engines) if key.endswith("lost"))
    return int(dropped + gaps + digests)


def _flat(tree: Any, path: str = "") -> Iterator[tuple[str, int]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _flat(value, f"{path}.{key}")
    elif isinstance(tree, int) and not isinstance(tree, bool):
        yield path, tree


def trace_numbers(told: Told, steps: int) -> tuple[float | None, float | None]:
    """(events a step, bytes on disk a tensor) of the last round's trace."""
    segments = told.trace.get("segments")
    if not segments:
        return None, None
    rows = {name: sum(one["rows"] for one in segments if one["table"] == name) for name in ("events", "slots")}
    return rows["events"] / steps, sum(one["bytes"] for one in segments) / max(1, rows["slots"])


def measure(part: str, options: argparse.Namespace, rows: Rows) -> None:
    """One part, a row for each variant as soon as it is known."""
    device, size = torch.device(options.device), (TINY if options.tiny else SIZES)[part]
    model, step = training(part, size, device, torch.bfloat16)
    if options.compiled:
        model.compile()
    for _ in range(3 if options.tiny else 10):
        step()
    timed(step, 1, device)
    bare_other = memory(device)[1]
    compiled = f", model compiled, level {options.compiled}" if options.compiled else ""
    how = f"{where(device.type)} {TITLES[part]}: {size}; bfloat16, fused AdamW{compiled}; {options.rounds} rounds of {options.steps} steps."
    rows.head(f"Step time, part {part}", how, COLUMNS)
    until = time.perf_counter() + options.seconds
    for engine, mode in VARIANTS[part]:
        if options.only and f"{engine}-{mode}" not in options.only:
            continue
        if time.perf_counter() > until:
            rows.row((engine, mode, *[None] * (len(COLUMNS) - 3), f"not run: {options.seconds} s were over"))
            continue
        try:
            rows.row((engine, mode, *variant(engine, mode, step, device, options, bare_other)))
        except Exception as error:  # the other rows are worth having whatever happens to one
            rows.row((engine, mode, *[None] * (len(COLUMNS) - 3), f"FAILED: {type(error).__name__}: {error}"[:300]))
            if options.strict:
                raise


def variant(engine: str, mode: str, step: Step, device: torch.device, options: argparse.Namespace, bare_other: int) -> tuple[object, ...]:
    """Cells of one variant, after engine and mode."""
    rounds, steps = (1, 2) if engine == "debugmode" else (options.rounds, options.steps)
    bares, ours, told, bare_peak = [], [], Told(), 0
    for _ in range(rounds):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        step()
        bares.append(timed(step, steps, device))
        bare_peak = max(bare_peak, memory(device)[0])
        told = Told()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with observed(engine, mode, device, told, options.compiled or AUTO):
            timed(step, 1 if engine == "debugmode" else UNTIMED, device)
            ours.append(timed(step, steps, device))
    by_events = statistics.median(
        statistics.median(one.device_ms) / statistics.median(bare.device_ms) for one, bare in zip(ours, bares, strict=True)
    )
    by_wall = statistics.median(one.wall_ms / bare.wall_ms for one, bare in zip(ours, bares, strict=True))
    bare_ms = statistics.median(ms for bare in bares for ms in bare.device_ms)
    added = (told.peak_bytes - bare_peak + told.other_bytes - bare_other) / 2**20 if device.type == "cuda" else None
    if options.details is not None:
        report = {"engine": engine, "mode": mode, "engines": told.engines, "coverage": told.coverage}
        report |= {"bare_ms": [one.device_ms for one in bares], "ms": [one.device_ms for one in ours]}
        with options.details.open("a", encoding="utf-8") as file:
            file.write(json.dumps(report, default=str) + "\n")
    if engine == "debugmode":
        return bare_ms, by_events, by_wall, added, None, None, None, None, "DebugMode, inputs and outputs hashed"
    return (
        bare_ms,
        by_events,
        by_wall,
        added,
        *trace_numbers(told, steps + UNTIMED),
        entries(told, steps + UNTIMED),
        lost(told),
        observers(told.engines),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=tuple(SIZES), default=["a"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="Sizes that a CPU can do in seconds.")
    parser.add_argument("--compiled", default="", choices=COMPILED, help="Compile the model, and observe it at this level.")
    parser.add_argument("--only", nargs="+", default=[], metavar="ENGINE-MODE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=220.0, help="No variant is begun after that, for each part.")
    parser.add_argument("--strict", action="store_true", help="Raise what a variant raises.")
    parser.add_argument("--out", type=Path, help="Rows are appended to this file.")
    parser.add_argument("--details", type=Path, help="A JSON line of everything for each variant is appended to this file.")
    options = parser.parse_args()
    rows = Rows(options.out)
    for part in options.part:
        measure(part, options, rows)


if __name__ == "__main__":
    main()
