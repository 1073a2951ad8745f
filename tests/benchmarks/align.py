"""Cost of judging two long runs on one core, and how it grows: `python -m tests.benchmarks --only align`.

A synthetic GPT of 30 repeated layers, the suspect with 1 % operators inserted, up to 1 % left out and 2 % swapped with
their neighbour (`tests.support.edits.harmless_edits`; only operators whose value nobody needs can be left out). Each size
is judged in a process of its own, so that its largest resident size is its own:
`python -m tests.benchmarks.align FOLDER --events N [--repeat R] [--profile]` prints what one size costs as JSON.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opguard_core.certify.compare import compare
from opguard_core.trace.reader import Run
from tests.benchmarks.report import Criterion, Section, table
from tests.support.synthetic import GptShape, Side, gpt, harmless_edits, write_run

SIZES = (10_000, 100_000, 1_000_000)
REPEATS = {10_000: 5, 100_000: 3}
LAYERS = 30
REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS, MEBIBYTES, GROWTH = 10.0, 2048.0, 1.2


def prepare(folder: Path, events: int, layers: int = LAYERS) -> tuple[Path, Path]:
    """Write both sides, unless they are there."""
    sides = folder / f"reference-{events}-{layers}", folder / f"suspect-{events}-{layers}"
    if not all((side / "manifest.json").exists() for side in sides):
        per_step = len(gpt(GptShape(layers=layers, steps=1)).body)
        program = gpt(GptShape(layers=layers, steps=max(1, events // per_step)))
        write_run(sides[0], program)
        write_run(sides[1], Side(program, harmless_edits(program, 7)))
    return sides


def judge(sides: tuple[Path, Path], repeat: int = 1) -> dict[str, Any]:
    """Judge one pair.

    Args:
        sides: Traces.
        repeat: How often; the least time counts.

    Returns:
        ``events`` of both sides, ``reading_s`` and ``whole_s`` of processor time (the latter has the reading in it),
        ``peak_mib``, ``verdict``, ``paired``.
    """
    reading, whole = [], []
    for _ in range(repeat):
        runs = [Run.open(side) for side in sides]
        began = time.process_time()
        events = sum(len(window) for run in runs for rank in run.ranks.values() for window in rank.iter_windows())
        reading.append(time.process_time() - began)
        began = time.process_time()
        verdict = compare(*(Run.open(side) for side in sides))
        whole.append(time.process_time() - began)
    return {
        "events": events,
        "reading_s": min(reading),
        "whole_s": min(whole),
        "peak_mib": peak_mebibytes(),
        "verdict": verdict.verdict,
        "paired": verdict.compared["paired_share"],
    }


def peak_mebibytes() -> float:
    """Largest resident size of this process.

    Source: proc(5). getrusage has the parent's size in it when the parent was larger at the fork.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def measure(folder: Path, *, progress: Callable[[str], None], sizes: Sequence[int] = SIZES, layers: int = LAYERS) -> Section:
    """Cost at every size, each in a process of its own.

    Args:
        folder: Scratch space; traces that are there are reused.
        progress: Told what is being done.
        sizes: Events a side, growing.
        layers: Of the synthetic model.
    """
    found = []
    for size in sizes:
        progress(f"align {size:,} x {size:,}: writing the two runs")
        prepare(folder, size, layers)
        progress(f"align {size:,} x {size:,}: judging")
        command = [sys.executable, "-m", "tests.benchmarks.align", str(folder), "--events", str(size), "--layers", str(layers)]
        command += ["--repeat", str(REPEATS.get(size, 1))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
    rows = [
        (
            f"{size:,} x {size:,}",
            one["verdict"],
            f"{one['paired']['reference']:.1%} / {one['paired']['suspect']:.1%}",
            one["reading_s"],
            one["whole_s"],
            one["whole_s"] / one["events"] * 1e6,
            one["peak_mib"],
        )
        for size, one in zip(sizes, found, strict=True)
    ]
    head = (
        "events",
        "verdict",
        "paired, reference / suspect",
        "reading alone, s",
        "whole comparison, s",
        "us an event",
        "largest resident size, MiB",
    )
    return Section(
        how=(
            f"Synthetic GPT of {layers} repeated layers, 1 % operators inserted, up to 1 % left out, 2 % swapped; processor time of all "
            "threads of the process, from opening the traces to the verdict, reading included; each size in its own process."
        ),
        tables=[table(head, rows)],
        criteria=criteria(found),
    )


def criteria(found: Sequence[dict[str, Any]]) -> list[Criterion]:
    """Time and memory of the largest size; growth of the cost of an event from each size to the next.

    What an event costs may fall as runs grow, for a comparison has a fixed part; it must not rise.
    """
    each = [one["whole_s"] / one["events"] for one in found]
    largest = found[-1]
    size = f"{largest['events'] / 2:,.0f} events a side"
    bounds = [
        Criterion(f"judging about {size}", largest["whole_s"], SECONDS, "s"),
        Criterion(f"largest resident size, about {size}", largest["peak_mib"], MEBIBYTES, "MiB"),
    ]
    return bounds + [
        Criterion(f"cost of an event, {b['events'] // 2:,} against {a['events'] // 2:,} a side", later / earlier, GROWTH)
        for a, b, earlier, later in zip(found, found[1:], each, each[1:], strict=False)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    sides = prepare(options.folder, options.events, options.layers)
    if options.profile:
        profiler = cProfile.Profile()
        profiler.runcall(judge, sides)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
        return
    print(json.dumps(judge(sides, options.repeat)))


if __name__ == "__main__":
    main()
