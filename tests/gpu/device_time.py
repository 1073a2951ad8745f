"""What the fingerprint kernels cost the device in a training step: their time beside the program's, the bytes they read, and where it goes.

    python3 -m tests.gpu.device_time [--part a] [--modes trusted full verify] [--compiled kernels] [--kinds 30] [--out FILE]
                                     [--device cpu --tiny]

The step is that of `step_time`; a profiler is on for two steps after six that are observed without it. Kernels are grouped by how many
blocks they were launched with, which grows with their bytes. Without a card there are no kernels, and the bytes alone are told.

``--kinds`` adds a table of what was read, the most expensive first: launches are matched with the trace by their order, where both have
as many.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from opguard_core.capture.session import start
from opguard_core.plan.config import AUTO, COMPILED, RunConfig
from tests.gpu.models import SIZES, TINY, TITLES, training
from tests.gpu.rows import Rows, where
from tests.support.engine_streams import read_tables

OURS = "og_"
STEPS = 2
COLUMNS = (
    "mode",
    "program, ms a step",
    "ours, ms a step",
    "ratio",
    "launches a step",
    "GB read a step",
    "TB/s",
    "by blocks: launches, ms a step",
)
KIND_COLUMNS = ("operator and views", "kernel", "launches a step", "ms a step", "MB each", "TB/s")
MOST_VIEWS = 64  # of one launch
_EDGES = (2, 9, 33, 133, 265, 529)  # blocks; an H200 has 132 multiprocessors


def kernels(step: Any, device: torch.device) -> list[dict[str, Any]]:
    """What the profiler saw run on the device in two steps."""
    if device.type != "cuda":
        for _ in range(STEPS):
            step()
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(STEPS):
            step()
        torch.cuda.current_stream().synchronize()  # this script's own wait
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text("utf-8"))["traceEvents"]
    return [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


def groups(ours: list[dict[str, Any]]) -> Iterator[str]:
    """Launches and milliseconds a step, by kernel and number of blocks."""
    sums: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0, 0.0])
    for event in ours:
        blocks = math.prod(event["args"]["grid"])
        one = sums[event["name"], next((edge - 1 for edge in _EDGES if blocks < edge), _EDGES[-1])]
        one[0] += 1 / STEPS
        one[1] += event["dur"] / 1e3 / STEPS
    for (name, most), (count, ms) in sorted(sums.items()):
        bound = f"<= {most}" if most < _EDGES[-1] else f">= {most}"
        yield f"{name} {bound}: {count:g}, {ms:.3g}"


def read_gb(folder: Path, window: int) -> float:
    """Billions of bytes whose digests one step's events have."""
    tables, _ = read_tables(folder / "rank-00000")
    inside = {seq for seq, found in zip(tables["events"]["seq"], tables["events"]["window"], strict=True) if found == window}
    columns = (tables["slots"][name] for name in ("seq", "status", "nbytes"))
    return sum(nbytes for seq, status, nbytes in zip(*columns, strict=True) if seq in inside and status == "probed") / 1e9


def launches_in(folder: Path, windows: range) -> list[tuple[str, int]]:
    """What each launch of some steps read, by the order of the trace: its views in words, and their bytes.

    The views that an operator reads are one launch, those that it makes and writes another.
    """
    tables, _ = read_tables(folder / "rank-00000")
    operators = {
        seq: operator
        for seq, operator, window in zip(*(tables["events"][name] for name in ("seq", "operator", "window")), strict=True)
        if window in windows
    }
    found: dict[tuple[int, bool], list[tuple[str, int]]] = defaultdict(list)
    columns = ("seq", "direction", "status", "device", "dtype", "shape", "strides", "nbytes")
    for seq, direction, status, device, dtype, shape, strides, nbytes in zip(*(tables["slots"][name] for name in columns), strict=True):
        if seq in operators and status == "probed" and device.startswith("cuda") and nbytes:
            found[seq, direction != "in"].append((f"{dtype} [{shape}]{f' by [{strides}]' if strides else ''}", nbytes))
    return [
        (f"{operators[seq]}: {_together([words for words, _ in views])}", sum(nbytes for _, nbytes in views))
        for (seq, _), all_views in sorted(found.items())
        for views in (all_views[at : at + MOST_VIEWS] for at in range(0, len(all_views), MOST_VIEWS))
    ]


def _together(views: list[str]) -> str:
    counts = Counter(views)
    words = [f"{count} x {view}" if count > 1 else view for view, count in counts.most_common(3)]
    return "; ".join(words) + (f"; {len(counts) - 3} kinds more" if len(counts) > 3 else "")


def kinds(ours: list[dict[str, Any]], folder: Path, most: int) -> Iterator[tuple[object, ...]]:
    """Rows of what was read: launches a step, us each, bytes each, rate; by their time in all."""
    read = launches_in(folder, range(6, 6 + STEPS))
    if len(read) != len(ours):
        yield f"{len(ours)} launches, {len(read)} in the trace: not matched", None, None, None, None, None
        return
    groups: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for event, (words, total) in zip(sorted(ours, key=lambda event: event["ts"]), read, strict=True):
        groups[words, event["name"], total].append(event["dur"])
    for (words, name, total), us in sorted(groups.items(), key=lambda item: -sum(item[1]))[:most]:
        each = sum(us) / len(us)
        yield words, name, len(us) / STEPS, sum(us) / STEPS / 1e3, total / 1e6, total / each / 1e6


def row(mode: str, step: Any, device: torch.device, most: int, level: str = AUTO) -> tuple[tuple[object, ...], list[tuple[object, ...]]]:
    """Cells of one mode, and what its most expensive launches read."""
    with tempfile.TemporaryDirectory(prefix="opguard-device-time-") as scratch:
        session = start(RunConfig(run_dir=Path(scratch), user_root=Path.cwd(), mode=mode, compiled=level))
        try:
            for _ in range(6):
                step()
            found = kernels(step, device)
        finally:
            session.stop("exit")
        gb = read_gb(Path(scratch), 5)
        ours = [event for event in found if event["name"].startswith(OURS)]
        most_expensive = list(kinds(ours, Path(scratch), most)) if most else []
    program = sum(event["dur"] for event in found if not event["name"].startswith(OURS)) / 1e3 / STEPS
    added = sum(event["dur"] for event in ours) / 1e3 / STEPS
    ratio, rate = ((program + added) / program, gb / added) if ours else (None, None)
    return (mode, program, added, ratio, len(ours) / STEPS, gb, rate, "; ".join(groups(ours))), most_expensive


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=tuple(SIZES), default="a")
    parser.add_argument("--modes", nargs="+", default=["trusted", "full", "verify"])
    parser.add_argument("--compiled", choices=COMPILED, help="compile the model with Inductor; how its code is observed")
    parser.add_argument("--kinds", type=int, default=0, help="so many kinds of launches, the most expensive first")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, help="Rows are appended to this file.")
    options = parser.parse_args(argv)
    device, size = torch.device(options.device), (TINY if options.tiny else SIZES)[options.part]
    model, step = training(options.part, size, device, torch.bfloat16)
    if options.compiled:
        model.compile()
    for _ in range(5):
        step()
    rows = Rows(options.out)
    compiled = f", model compiled, level {options.compiled}" if options.compiled else ""
    rows.head("Device time of a step", f"{where(device.type)} {TITLES[options.part]}: {size}; bfloat16, fused AdamW{compiled}.", COLUMNS)
    most_expensive = {}
    for mode in options.modes:
        cells, most_expensive[mode] = row(mode, step, device, options.kinds, options.compiled or AUTO)
        rows.row(cells)
    for mode in options.modes if options.kinds else ():
        rows.head(f"What was read, mode {mode}", "By time in all.", KIND_COLUMNS)
        for cells in most_expensive[mode]:
            rows.row(cells)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
