"""What capture costs on a small CPU GPT: step time bare, under each mode, and under torch's own DebugMode with hashing.

    python -m tests.benchmarks --only capture
    OMP_NUM_THREADS=1 python -m tests.benchmarks.capture --profile MODE

All variants run in one process, in rounds, so that a busy machine slows them alike; ratios are of CPU time of the training
thread against bare, with wall time beside. DebugMode hashes inputs and outputs, which is what it can do that is closest to
mode verify; it records no source places then, we do.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import orjson
import torch

from opguard_core.capture.session import start
from opguard_core.plan.config import RunConfig
from tests.benchmarks.report import Criterion, Section, table
from tests.benchmarks.training import Shape, Training

VARIANTS = ("bare", "sentinel", "outside", "trusted", "full", "verify", "debugmode")
OUTSIDE = (1 << 30, (1 << 30) + 1)  # a window that no step reaches: what `--steps` costs before and after it
TITLES = {
    "sentinel": "sentinel (state only)",
    "outside": "verify, outside the window of `--steps`",
    "debugmode": "DebugMode with input and output hashes",
}
SIZE = Shape(layers=4, width=384)
WIDTHS = (128, 256)
SHARE = 0.45  # of what DebugMode adds, the most that mode verify may add
TRACE_BYTES = 48  # a tensor, on disk


@contextlib.contextmanager
def observed(variant: str, folder: Path) -> Iterator[None]:
    """Run the block under one variant."""
    if variant == "bare":
        yield
    elif variant == "debugmode":
        from torch.utils._debug_mode import DebugMode

        with DebugMode(), DebugMode.log_tensor_hashes(hash_inputs=True):
            yield
    else:
        folder.mkdir(parents=True)
        mode, steps = ("verify", OUTSIDE) if variant == "outside" else (variant, None)
        session = start(RunConfig(run_dir=folder, user_root=Path.cwd(), mode=mode, steps=steps))
        try:
            yield
        finally:
            session.stop("exit")


class Times:
    """Seconds of each step, by variant and round.

    Attributes:
        cpu: Of the training thread.
        wall: By the clock.
    """

    def __init__(self, variants: Sequence[str]) -> None:
        self.cpu: dict[str, list[list[float]]] = {variant: [] for variant in variants}
        self.wall: dict[str, list[list[float]]] = {variant: [] for variant in variants}

    def ratio(self, variant: str, *, wall: bool = False) -> float:
        """Median over rounds of (median step of the variant / median step of bare in the same round)."""
        times = self.wall if wall else self.cpu
        return statistics.median(
            statistics.median(ours) / statistics.median(bare) for ours, bare in zip(times[variant], times["bare"], strict=True)
        )

    def cpu_ms(self, variant: str) -> float:
        """Median CPU milliseconds of a step."""
        return statistics.median(seconds for steps in self.cpu[variant] for seconds in steps) * 1e3


def interleaved(shape: Shape, variants: Sequence[str], folder: Path, *, rounds: int, steps: int, progress: Callable[[str], None]) -> Times:
    """Time one training under every variant, round after round.

    Args:
        shape: Sizes.
        variants: Which; "bare" must be among them.
        folder: Traces go to ``VARIANT-ROUND`` in it.
        rounds: How often each variant has its turn.
        steps: Timed steps a turn; one more before them is not timed.
        progress: Told about each round.
    """
    times = Times(variants)
    training = Training(shape)
    training.step()
    for number in range(rounds):
        progress(f"capture, width {shape.width}: round {number + 1} of {rounds}")
        for variant in variants:
            cpu, wall = [], []
            with observed(variant, folder / f"{variant}-{number}"):
                training.step()
                for _ in range(steps):
                    begun_cpu, begun = time.thread_time(), time.perf_counter()
                    training.step()
                    cpu.append(time.thread_time() - begun_cpu)
                    wall.append(time.perf_counter() - begun)
            times.cpu[variant].append(cpu)
            times.wall[variant].append(wall)
    return times


def trace_size(rank_folder: Path) -> tuple[int, int, float] | None:
    """Events, slots and bytes on disk per slot of a finished trace; None if there is none."""
    manifest = rank_folder / "manifest.json"
    if not manifest.exists():
        return None
    segments = orjson.loads(manifest.read_bytes())["segments"]
    rows = {name: sum(s["rows"] for s in segments if s["table"] == name) for name in ("events", "slots")}
    return rows["events"], rows["slots"], sum(s["bytes"] for s in segments) / max(1, rows["slots"])


def share_of(ours: float, theirs: float) -> float:
    """What ours adds to a step as a share of what theirs adds, both as ratios against bare."""
    return (ours - 1) / (theirs - 1)


def measure(
    folder: Path,
    *,
    progress: Callable[[str], None],
    shape: Shape = SIZE,
    rounds: int = 5,
    steps: int = 2,
    widths: Sequence[int] = WIDTHS,
    variants: Sequence[str] = VARIANTS,
) -> Section:
    """Cost of every variant at one size, and of the main ones as the model grows.

    Args:
        folder: Scratch space.
        progress: Told what is being done.
        shape: Size of the main table.
        rounds: Interleaved rounds of the main table.
        steps: Timed steps a round.
        widths: Further sizes of the second table, fewer rounds.
        variants: Rows of the main table.
    """
    times = interleaved(shape, variants, folder / "main", rounds=rounds, steps=steps, progress=progress)
    sizes = {variant: trace_size(folder / "main" / f"{variant}-0" / "rank-00000") for variant in variants}
    rows = []
    for variant in variants:
        size = sizes[variant]
        kept = (None, None) if size is None or not size[1] else (size[1], size[2])
        rows.append(
            (TITLES.get(variant, variant), times.cpu_ms(variant), times.ratio(variant), times.ratio(variant, wall=True), kept[0], kept[1])
        )
    tables = [table(("variant", "CPU ms a step", "ratio", "wall ratio", "tensors in the trace", "bytes on disk a tensor"), rows)]
    main = ("bare", "full", "verify", "debugmode")
    by_width = {shape.width: times}
    for width in widths:
        other = Shape(shape.layers, width, shape.vocab, shape.context, shape.batch)
        by_width[width] = interleaved(other, main, folder / f"width-{width}", rounds=min(3, rounds), steps=steps, progress=progress)
    grown = []
    for width, part in sorted(by_width.items()):
        ratios = [part.ratio(variant) for variant in main[1:]]
        grown.append((width, part.cpu_ms("bare"), *ratios, share_of(ratios[1], ratios[2])))
    if widths:
        tables.append(table(("width", "bare, CPU ms a step", "full", "verify", "DebugMode", "(verify - 1) / (DebugMode - 1)"), grown))
    criteria = [
        Criterion("(verify - 1) / (DebugMode - 1), inputs and outputs", share_of(times.ratio("verify"), times.ratio("debugmode")), SHARE)
    ]
    criteria += [
        Criterion(f"trace of mode {variant}, bytes a tensor", size[2], TRACE_BYTES)
        for variant in ("full", "verify")
        if (size := sizes.get(variant)) is not None
    ]
    return Section(
        how=(
            f"torch {torch.__version__}, {torch.get_num_threads()} thread; GPT of {shape.layers} layers, width {shape.width}, batch "
            f"{shape.batch} x {shape.context}, AdamW; one process, {rounds} interleaved rounds of {steps} steps; CPU time of the training "
            "thread, medians; a ratio is taken within its round."
        ),
        tables=tables,
        criteria=criteria,
    )


def profile(shape: Shape, variant: str, steps: int) -> None:
    """Print where one variant spends its time."""
    training = Training(shape)
    training.step()
    profiler = cProfile.Profile()
    with tempfile.TemporaryDirectory(prefix="opguard-bench-") as scratch, observed(variant, Path(scratch) / "profile"):
        training.step()
        profiler.enable()
        for _ in range(steps):
            training.step()
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 4), ("width", 384), ("vocab", 1024), ("context", 128), ("batch", 4), ("steps", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--profile", choices=VARIANTS[1:], required=True)
    options = parser.parse_args()
    profile(Shape(options.layers, options.width, options.vocab, options.context, options.batch), options.profile, options.steps)


if __name__ == "__main__":
    main()
