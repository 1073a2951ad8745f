"""Our own subscriber of CUPTI beside the shim: the same kernels, those of a graph by name; a profiler that starts later sees its own.

    python3 -m tests.gpu.cupti [--out FILE] [--dry-run]

Half a minute; two processes that begin with the shim and `OPGUARD_CUPTI=1`. One trains a little, captures a graph under the capture and
replays it, ends the capture, and profiles; the other starts the profiler while the capture goes on. Without a card the subscriber is
refused, and the rows say why.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from opguard_core import builds
from opguard_core.intercept import cupti, shim
from tests.gpu.rows import Rows, where

COLUMNS = (
    "the profiler starts",
    "CUPTI: kernels",
    "with a boundary",
    "in graphs",
    "shim: kernels, in graphs",
    "by name alike",
    "profiler sees",
    "said",
    "right",
)
REPLAYS = 5


def child(later: bool, folder: Path, device: str) -> dict[str, Any]:
    """One run; what each of the three saw."""
    from opguard_core.capture.session import start
    from opguard_core.plan.config import RunConfig
    from opguard_core.trace.reader import RankTrace

    session = start(RunConfig(run_dir=folder, user_root=Path.cwd(), mode="full", plan_hash="0" * 64))
    weight = torch.randn(256, 256, device=device, requires_grad=True)
    x = torch.randn(64, 256, device=device)

    def step() -> None:
        (x @ weight).relu().sum().backward()

    for _ in range(3):
        step()
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = (x @ x.T).exp().sum(0)
        for _ in range(REPLAYS):
            graph.replay()
        kept.sum()
        torch.cuda.current_stream().synchronize()  # this script's own wait
    if later:
        session.stop("exit")
    activities = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if device == "cuda" else [])]
    with torch.profiler.profile(activities=activities) as profile:
        step()
        if device == "cuda":
            torch.cuda.current_stream().synchronize()
    kernels = sum(event.device_type() == torch.autograd.DeviceType.CUDA for event in profile.profiler.kineto_results.events())
    session.stop("exit")
    seen: Counter[str] = Counter()
    in_graphs = 0
    for row in RankTrace.open(folder / "rank-00000").launches:
        if "kernel" in row.kind or row.kind == "graph":
            seen[row.kernel] += row.count
            in_graphs += row.count if row.kind == "graph" else 0
    report = session.engines.get("cupti", {})
    times = session.engines.get("launches", {}).get("kernel_times", {})
    alike = sum((seen & Counter({name: one["count"] for name, one in times.items()})).values())
    return {"cupti": report, "shim": sum(seen.values()), "shim_in_graphs": in_graphs, "alike": alike, "profiler": kernels}


def tell(rows: Rows, later: bool, found: dict[str, Any], *, dry_run: bool) -> bool:
    """One row; whether it is as it has to be."""
    report = found.get("cupti") or {}
    right = bool(report.get("active")) and report.get("in_graphs", 0) > 0 and found["profiler"] > 0
    right &= found.get("shim_in_graphs") == report.get("in_graphs") and (later or report.get("reason") == cupti.PROFILER)
    if dry_run:
        right = report.get("active") is False and bool(report.get("reason"))
    cells = [report.get(name) for name in ("kernels", "attributed", "in_graphs")]
    shim_cell = f"{found.get('shim')}, {found.get('shim_in_graphs')}"
    said = str(report.get("reason") or found.get("error") or "")
    when = "after the capture" if later else "during the capture"
    rows.row((when, *cells, shim_cell, found.get("alike"), found.get("profiler"), said, "yes" if right else "NO"))
    return right


def run(later: bool, options: argparse.Namespace, environment: dict[str, str]) -> dict[str, Any]:
    """The child's answer, or what it said last."""
    with tempfile.TemporaryDirectory(prefix="opguard-cupti-") as scratch:
        words = [sys.executable, "-m", "tests.gpu.cupti", "--child", str(int(later)), scratch, "--device", options.device]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1][:200], "profiler": 0}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="Rows are appended to this file.")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        print(json.dumps(child(options.child[0] == "1", Path(options.child[1]), options.device)))
        return 0
    options.device = "cpu" if options.dry_run else options.device
    environment = {**os.environ, cupti.SWITCH: "1"}
    recipe = shim.recipe()
    built = recipe if isinstance(recipe, builds.NotBuilt) else builds.obtain(recipe)
    if isinstance(built, builds.Built):
        environment = shim.preloaded(environment, built.path)
    rows = Rows(options.out)
    rows.head("CUPTI as an opt-in", f"{where(options.device)} {REPLAYS} replays of a graph among three steps.", COLUMNS)
    return 0 if all([tell(rows, later, run(later, options, environment), dry_run=options.dry_run) for later in (True, False)]) else 1  # noqa: C419


if __name__ == "__main__":
    raise SystemExit(main())
