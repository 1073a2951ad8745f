"""One section in a process of its own, begun with the shim: what torch.profiler saw, what the shim saw, to which events it belongs.

Prints one JSON object. Started by `coverage`, not by hand.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from opguard_core.capture.session import start
from opguard_core.intercept import shim
from opguard_core.intercept.profiled import demangled, is_kernel
from opguard_core.plan.config import RunConfig
from opguard_core.trace.reader import RankTrace
from tests.gpu import coverage_work
from tests.gpu.coverage_work import FROM_THE_FIRST, OUTSIDE, SECTIONS, Work

OURS = "og_"  # how the fingerprint kernels' names begin
CHUNK, CHUNKS = 100, 60  # launches are queued about a thousand deep: beyond it they block, whoever launches
Names = Counter[str]


def profiled(work: Work, repetitions: int) -> tuple[Names, Counter[str], dict[str, int]]:
    """Kernels that the profiler sees by name, their nanoseconds, and copies and fills; ours left out."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(repetitions):
            work()
        torch.cuda.current_stream().synchronize()  # this script's own wait
    counts: Names = Counter()
    times: Counter[str] = Counter()
    rest: Counter[str] = Counter()
    assert profile.profiler is not None
    for event in profile.profiler.kineto_results.events():
        name = event.name()
        if event.device_type() != torch.autograd.DeviceType.CUDA:
            continue
        if name.startswith(("Memcpy", "Memset")):
            rest[name.split(" ")[0]] += 1
        elif not is_kernel(event):
            continue
        elif name.startswith(OURS):
            rest["ours"] += 1
        else:
            counts[name] += 1
            times[name] += event.duration_ns()
    return counts, times, dict(rest)


def captured(name: str, work: Work, options: argparse.Namespace) -> dict[str, Any]:
    """One section under a capture."""
    session = start(
        RunConfig(run_dir=options.folder, user_root=Path.cwd(), mode="full", steps=None, plan_hash="0" * 64, engine=options.engine)
    )
    first = 0
    if options.fake:
        before = options.seen()
        for _ in range(options.repetitions):
            work()
        counts, times, rest = Counter({"launches of the fake driver": options.seen() - before}), Counter(), {}
    else:
        work()  # whatever is loaded by the first call under a capture
        torch.ones(1, device=coverage_work.DEVICE).add_(1)  # an event: what is launched from here on comes after it
        torch.cuda.current_stream().synchronize()
        first = session.context.outbox.next_seq
        counts, times, rest = profiled(work, options.repetitions)
    session.stop("exit")
    trace = RankTrace.open(options.folder / "rank-00000")
    found = summed(row for row in trace.launches if _when(row) >= first)
    engines = trace.manifest.engines
    observer = next(iter(engines))
    return {
        "section": name,
        "profiler": counts,
        "times": times,
        "rest": rest,
        "launches": engines.get("launches"),
        "engine": observer,
        "why": engines[observer].get("why_not_native", ""),
        **found,
    }


def _when(row: Any) -> int:
    """Number of the first event that can come after it; a replay has the event that captured it, and ran later."""
    return row.seq if row.after is None and row.seq is not None else (-1 if row.after is None else row.after) + 1


def summed(rows: Any) -> dict[str, Any]:
    """Kernels of the shim by name, with and without an event."""
    attributed, apart, other = Counter(), Counter(), Counter()  # type: ignore[var-annotated]
    for row in rows:
        if "kernel" in row.kind or (row.kind == "graph" and row.kernel):
            (apart if row.seq is None else attributed)[demangled(row.kernel)] += row.count
        else:
            other[row.kind + ("" if row.seq is not None else " (apart)")] += row.count
    return {"attributed": attributed, "apart": apart, "other": other}


def outside(name: str, work: Work, options: argparse.Namespace) -> dict[str, Any]:
    """One section with the shim alone, no capture."""
    here = shim.attached()
    assert isinstance(here, shim.Shim), here
    work()
    here.enable(True)
    counts, times, rest = profiled(work, options.repetitions)
    here.enable(False)
    apart = Counter(demangled(one.name) for one in here.take() if "kernel" in one.kind)
    return {
        "section": f"{name}, outside capture",
        "profiler": counts,
        "times": times,
        "rest": rest,
        "attributed": {},
        "apart": apart,
        "other": {},
    }


def cost(options: argparse.Namespace) -> dict[str, Any]:
    """Nanoseconds an empty launch takes from C, with the shim recording, not recording, or not there."""
    from opguard_core import builds

    loops = builds.obtain(
        builds.Recipe(name="launch_loops", says="the loops", source=Path(__file__).with_name("launch_loops.c")), ctypes.CDLL
    )
    assert isinstance(loops, builds.Built), loops
    loops.opened.loop_empty.restype = ctypes.c_int64
    if options.fake:
        driver, kernel = ctypes.CDLL("libcuda.so.1"), 5
    else:
        import cupy

        kept = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
        kernel = int(kept.kernel.ptr)
        driver = ctypes.CDLL("libcuda.so.1")
    launch = ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p)
    here = shim.attached()
    ways = ["off", "boundary", "apart"] if isinstance(here, shim.Shim) else ["without the shim"]
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(CHUNKS):
        for way in ways:
            if isinstance(here, shim.Shim):
                here.enable(way != "off")
                here.set_boundary(7 if way == "boundary" else shim.NO_BOUNDARY)
            took = loops.opened.loop_empty(launch, ctypes.c_void_p(kernel), None, CHUNK)
            times[way].append(took / CHUNK)
            if not options.fake:
                torch.cuda.current_stream().synchronize()
            if isinstance(here, shim.Shim):
                here.take_raw()
    return {way: {"median": statistics.median(found), "least": min(found)} for way, found in times.items()}


def steps(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds a training step takes, with the shim recording, not recording, or not there."""
    from tests.gpu.models import SIZES, TINY, training

    device = torch.device("cpu" if options.fake else "cuda")
    _, step = training("a", (TINY if options.fake else SIZES)["a"], device, torch.float32 if options.fake else torch.bfloat16)
    here = shim.attached()
    ways = ["preloaded", "recording"] if isinstance(here, shim.Shim) else ["without the shim"]
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(options.repetitions + 5):
        for way in ways:
            if isinstance(here, shim.Shim):
                here.enable(way == "recording")
            begun = time.perf_counter()
            step()
            if not options.fake:
                torch.cuda.current_stream().synchronize()
            if number >= 5:
                times[way].append((time.perf_counter() - begun) * 1e3)
            if isinstance(here, shim.Shim):
                here.take_raw()
    return {
        way: {"median": statistics.median(found), "spread": float(np.percentile(found, 90) - np.percentile(found, 10))}
        for way, found in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("section")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--fake", type=Path, help="Folder of the fake driver.")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.section in ("cost", "steps"):
        print(json.dumps((cost if options.section == "cost" else steps)(options)))
        return
    if options.fake:
        work, options.seen = coverage_work.fake(options.fake)
    else:
        work = SECTIONS[options.section]()
        for _ in range(0 if options.section in FROM_THE_FIRST else 2):
            work()
        torch.cuda.current_stream().synchronize()
    answers = [outside(options.section, work, options)] if options.section in OUTSIDE and not options.fake else []
    answers.append(captured(options.section, work, options))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
