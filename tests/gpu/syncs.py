"""Host synchronisations that observing adds to 50 steps: with minus without must be nothing.

    python3 -m tests.gpu.syncs [--modes verify full trusted sentinel] [--engines native dispatch] [--out FILE] [--profiler]

Each variant runs in a process of its own, with a counter before the CUDA runtime (preloaded) and before the driver for our own launch
path (OPGUARD_LIBCUDA): cudaDeviceSynchronize, StreamSynchronize, EventSynchronize, copies that block (cudaMemcpy, and cudaMemcpyAsync
from or to memory that is not pinned), allocations (which may wait, too). Counted are the training's thread and autograd's threads;
our copier waits on a thread and stream of its own, which is shown and no cost of the training. `--profiler` counts once more with
torch.profiler, which needs no counter of ours, and sees the runtime's calls on all threads.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tests.gpu.models import Size, training
from tests.gpu.rows import Rows, observers, where
from tests.gpu.step_time import MODES, Told, observed

FUNCTIONS = ("DeviceSynchronize", "StreamSynchronize", "EventSynchronize", "blocking copies", "allocations")
WAITS = FUNCTIONS[:4]
THREADS = ("training", "autograd", "other")
SIZE, SMALL = Size(4, 256, 128, 4, 1024), Size(2, 64, 32, 2, 128)
COLUMNS = ("engine", "mode", *(f"{name}, added" for name in FUNCTIONS), "bare has", "on other threads", "ran as", "nothing added")
SOURCE = Path(__file__).with_name("sync_counter.c")
REPOSITORY = Path(__file__).resolve().parents[2]


def built(folder: Path) -> tuple[Path, Path | None]:
    """The counter before the runtime, and the one before the driver where there is a driver."""
    runtime, driver = folder / "libcounter-runtime.so", folder / "libcounter-driver.so"
    base = ["cc", "-O2", "-shared", "-fPIC", str(SOURCE), "-o"]
    subprocess.run([*base, str(runtime), "-ldl", "-pthread"], check=True)
    found = _driver()
    if found is None:
        return runtime, None
    # Linked against the driver, so that whoever looks for another of its functions here finds it there.
    subprocess.run([*base, str(driver), "-DFOR_DRIVER", "-Wl,--no-as-needed", found, "-ldl", "-pthread"], check=True)
    return runtime, driver


def _driver() -> str | None:
    """Path of the driver's library, as the loader finds it; None where there is none."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    mapped = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return next((line.split(maxsplit=5)[5] for line in mapped if "/libcuda.so" in line), None)


def child(engine: str, mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run 50 steps in this process and count; for the processes that `main` starts."""
    device = torch.device(options.device)
    _, step = training("a", SMALL if options.tiny else SIZE, device, torch.float32 if device.type == "cpu" else torch.bfloat16)
    counters = [ctypes.CDLL(path) for path in (os.environ.get("LD_PRELOAD"), os.environ.get("OPGUARD_LIBCUDA")) if path]
    told = Told()
    for _ in range(5):
        step()
    for counter in counters:
        counter.counter_is_training()
    profiled: Counter[str] = Counter()

    def fifty() -> None:
        for _ in range(options.steps):
            step()

    def run() -> None:
        for _ in range(5):
            step()
        for counter in counters:
            counter.counter_reset()
        if options.profiler:
            from torch.profiler import ProfilerActivity, profile

            with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]) as found:
                fifty()
            for event in found.events() or ():
                if event.name.startswith("cuda") and ("Synchronize" in event.name or event.name == "cudaMemcpy"):
                    profiled[event.name] += 1
        else:
            fifty()
        numbers.extend(_read(counter) for counter in counters)

    numbers: list[list[list[int]]] = []
    if engine == "bare":
        run()
    else:
        with observed(engine, mode, device, told):
            run()
    total = [[sum(one[at][thread] for one in numbers) for thread in range(len(THREADS))] for at in range(len(FUNCTIONS))]
    return {"counts": total, "profiled": dict(profiled), "ran_as": observers(told.engines)}


def _read(counter: ctypes.CDLL) -> list[list[int]]:
    numbers = (ctypes.c_long * (len(FUNCTIONS) * len(THREADS)))()
    counter.counter_read(numbers)
    return [list(numbers[at * len(THREADS) : (at + 1) * len(THREADS)]) for at in range(len(FUNCTIONS))]


def counted(engine: str, mode: str, options: argparse.Namespace, libraries: tuple[Path, Path | None]) -> dict[str, Any]:
    """Start a child and read what it counted."""
    runtime, driver = libraries
    environment = {**os.environ, "LD_PRELOAD": str(runtime), **({"OPGUARD_LIBCUDA": str(driver)} if driver else {})}
    command = [sys.executable, "-m", "tests.gpu.syncs", "--child", engine, mode, "--device", options.device, "--steps", str(options.steps)]
    command += ["--tiny"] if options.tiny else []
    command += ["--profiler"] if options.profiler else []
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment, check=False)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no output"])[-1])
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def tell(rows: Rows, engine: str, mode: str, bare: dict[str, Any], ours: dict[str, Any]) -> bool:
    """Write the row of a variant; whether nothing was added."""
    own = [sum(ours["counts"][at][:2]) - sum(bare["counts"][at][:2]) for at in range(len(FUNCTIONS))]
    other = [ours["counts"][at][2] - bare["counts"][at][2] for at in range(len(FUNCTIONS))]
    shown = ", ".join(f"{count} {name}" for name, count in zip(FUNCTIONS, other, strict=True) if count)
    has = ", ".join(f"{sum(bare['counts'][at][:2])} {name}" for at, name in enumerate(FUNCTIONS) if sum(bare["counts"][at][:2]))
    nothing = not any(count > 0 for count in own[: len(WAITS)])
    if ours["profiled"] or bare["profiled"]:
        more = {name: ours["profiled"].get(name, 0) - bare["profiled"].get(name, 0) for name in {**ours["profiled"], **bare["profiled"]}}
        shown += f"; profiler, all threads, added: {more}"
    rows.row((engine, mode, *own, has, shown, ours["ran_as"], "yes" if nothing else "NO"))
    return nothing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--engines", nargs="+", default=["native", "dispatch"])
    parser.add_argument("--modes", nargs="+", default=["verify", "full", "trusted", "sentinel"], choices=MODES)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--profiler", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(*options.child, options)))
        return 0
    rows, right = Rows(options.out), True
    size = SMALL if options.tiny else SIZE
    with tempfile.TemporaryDirectory(prefix="opguard-syncs-") as scratch:
        libraries = built(Path(scratch))
        counted_too = "runtime and driver counted" if libraries[1] else "the runtime counted; there is no driver to count"
        how = f"{where(options.device)} GPT of {size}; {counted_too}."
        rows.head(f"Host synchronisations added over {options.steps} steps", how, COLUMNS)
        bare = counted("bare", "bare", options, libraries)
        for engine in options.engines:
            for mode in options.modes if engine == options.engines[0] else [mode for mode in options.modes if mode != "sentinel"]:
                try:
                    right &= tell(rows, engine, mode, bare, counted(engine, mode, options, libraries))
                except RuntimeError as error:
                    rows.row((engine, mode, *[None] * 7, f"FAILED: {error}"[:300], "NO"))
                    right = False
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
