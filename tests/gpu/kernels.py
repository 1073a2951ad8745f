"""The fingerprint kernels on a card: right bit for bit, and how fast beside a device copy and `torch.sum`.

    python3 -m tests.gpu.kernels [--quick] [--large] [--out FILE] [--seconds 500] [--variants] [--dry-run]

Launches straight through the driver, with CuPy only compiling: nothing of cuda/launch.c is in the way. Each row is written as soon as
it is known, the important ones first; when the time is up the rest is left out and said so. `--quick` compiles one kernel and takes
less than a minute. `--dry-run` runs the checks over the CPU emulation, small, and no timing.

Times: launches over buffers that together exceed the second-level cache (from 1 MB on), captured in a CUDA graph (so that the host does
not limit small sizes), between two events; the median of several replays, in turns with a copy. Share: bytes read per second against those
that copy reads and writes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from tests.gpu.kernel_checks import GIB, MIB, Card, checks
from tests.gpu.rows import Rows, where
from tests.support.emulated_cuda import NO_ELEMENTS, NO_VALUE64, STATISTICS, Device, Place, plan, view_of

KIB = 1 << 10
ROTATED_BYTES = 512 * MIB  # more than ten times the second-level cache
SUBSETS = {"all": 0, "no value64": NO_VALUE64, "mix64, xor, trivial": NO_ELEMENTS}
COLUMNS = ("what", "dtype", "digests", "size", "us", "GB/s read", "share of copy", "budget", "torch.sum GB/s", "against torch.sum")


class Clock:
    """Device times of calls, each over its own buffers."""

    def __init__(self, card: Card, repeats: int) -> None:
        self.card, self.torch, self.repeats = card, card.torch, repeats

    def graph(self, calls: list[Callable[[], object]], rounds: int) -> tuple[Any, int]:
        """`rounds` turns through `calls`, captured, and how many calls that are."""
        torch = self.torch
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for call in calls[:3]:
                call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(rounds):
                for call in calls:
                    call()
        return graph, rounds * len(calls)

    def microseconds(self, *graphs: tuple[Any, int]) -> list[float]:
        """The median time of one call of each graph; they take turns, so that all see the same card, and the first turns do not count."""
        times: list[list[float]] = [[] for _ in graphs]
        for _ in range(self.repeats + 2):
            for (graph, count), into in zip(graphs, times, strict=True):
                self.card.clear()
                begin, end = self.torch.cuda.Event(enable_timing=True), self.torch.cuda.Event(enable_timing=True)
                begin.record()
                graph.replay()
                end.record()
                end.synchronize()
                into.append(begin.elapsed_time(end) * 1000 / count)
        return [statistics.median(each[2:]) for each in times]


def size_name(size: int) -> str:
    return f"{size // GIB} GB" if size >= GIB else f"{size // MIB} MB" if size >= MIB else f"{size // KIB} kB"


class Bench:
    """One table; every row is measured in turns with a copy of the same size."""

    def __init__(self, card: Card, rows: Rows, repeats: int) -> None:
        self.card, self.rows, self.torch = card, rows, card.torch
        self.clock = Clock(card, repeats)
        self.size = 0
        self.buffers: list[Any] = []
        self.targets: list[Any] = []  # kept: a captured copy goes on writing to them
        self.copy: tuple[Any, int] = (None, 0)
        self.sums: dict[tuple[int, str], float] = {}
        self.others = self.other_kernels()

    def prepare(self, size: int) -> None:
        """Buffers of `size` bytes and a little to rotate over, filled with finite numbers, and the copy that is faster: the driver's or
        a kernel's (the driver's is a third slower at 1 GB inside a graph)."""
        if size == self.size:
            return
        self.size, self.copy = size, (None, 0)
        self.buffers.clear()
        self.targets.clear()
        count = max(2, min(512, -(-ROTATED_BYTES // size)))
        generator = self.torch.Generator(device="cuda").manual_seed(size)
        base = self.torch.randn((size + 256) // 2, device="cuda", generator=generator, dtype=self.torch.bfloat16).view(self.torch.uint8)
        self.buffers += [base.clone() for _ in range(count)]
        self.targets += [base.clone() for _ in range(max(2, count // 2))]
        words = [buffer[:size].view(self.torch.int32) for buffer in self.buffers]
        places = [target[:size].view(self.torch.int32) for target in self.targets]
        pairs = [(places[k % len(places)], of) for k, of in enumerate(words)]
        copies = [self.clock.graph([lambda to=to, of=of: to.copy_(of) for to, of in pairs], self.rounds())]
        copies.append(self.clock.graph([lambda to=to, of=of: self.torch.bitwise_not(of, out=to) for to, of in pairs], self.rounds()))
        times = self.clock.microseconds(*copies)
        for what, us in zip(("copy by the driver", "copy by a kernel"), times, strict=True):
            self.rows.row((what, None, None, size_name(size), us, 2 * size / us / 1e3, min(times) / us, None, None, None))
        self.copy = copies[times.index(min(times))]

    def rounds(self) -> int:
        count = max(1, len(self.buffers))
        return max(1, min(4, 2 * GIB // (self.size * count)), -(-64 // count) if self.size <= MIB else 1)

    def sum_us(self, dtype: str) -> float | None:
        if dtype not in ("bfloat16", "float16", "float32", "float64"):
            return None
        key = (self.size, dtype)
        if key not in self.sums:
            tensors = [buffer[: self.size].view(getattr(self.torch, dtype)) for buffer in self.buffers]
            out = self.torch.empty((), device="cuda", dtype=tensors[0].dtype)
            calls = [lambda tensor=tensor: self.torch.sum(tensor, dim=0, out=out) for tensor in tensors]
            self.sums[key] = self.clock.microseconds(self.clock.graph(calls, self.rounds()))[0]
        return self.sums[key]

    def measure(
        self,
        what: str,
        dtype: str,
        size: int,
        subset: str = "all",
        *,
        layout: Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]] | None = None,
        offset: int = 0,
        budget: float | None = None,
        flags: int = 0,
        segments: int = 1,
        num_sms: int | None = None,
    ) -> None:
        """One row: the kernel on `size` bytes of `dtype` (`layout` maps the number of elements to shape and strides)."""
        self.prepare(size)
        item = ELEMENT_TYPES[dtype].item_bytes
        calls, read = [], size
        for buffer in self.buffers:
            base, each = buffer.data_ptr() + offset * item, size // segments
            shape, strides = layout(each // item) if layout else ((each // item,), (1,))
            read = int(np.prod(shape, dtype=np.int64)) * item * segments
            views = [view_of(Place(base + k * each, dtype, shape, strides)) for k in range(segments)]
            planned = plan(views, SUBSETS[subset] | flags, num_sms or self.card.num_sms)
            calls.append(lambda planned=planned: self.card.launch(planned))
        us, copy = self.clock.microseconds(self.clock.graph(calls, self.rounds()), self.copy)
        total = self.sum_us(dtype)
        rate, copied = read / us / 1e3, 2 * size / copy / 1e3
        share = rate / copied
        summed = size / total / 1e3 if total else None
        held = None if budget is None else f"{budget:.2f} {'yes' if share >= budget else 'NO'}"
        cells = (what, dtype, subset, size_name(size), us, rate, share, held, summed, rate / summed if summed else None)
        self.rows.row(cells)

    def other_kernels(self) -> list[Callable[[], object]]:
        torch = self.torch
        x, y = torch.randn(1 << 18, device="cuda"), torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
        out, turned_out = torch.empty_like(x), torch.empty_like(y)
        return [
            lambda: torch.mul(x, 2, out=out),
            lambda: torch.mm(y, y, out=turned_out),
            lambda: torch.softmax(y, -1, out=turned_out),
            lambda: torch.cumsum(x, 0, out=out),
        ]

    def between(self, dtype: str, size: int, subset: str = "all", budget: float | None = None) -> None:
        """One row: what a graph of other kernels takes longer for each probe that follows one of them."""
        self.prepare(size)
        calls: list[Callable[[], object]] = []
        for other, buffer in zip(self.others, self.buffers, strict=False):
            views = [view_of(Place(buffer.data_ptr(), dtype, (size // ELEMENT_TYPES[dtype].item_bytes,), (1,)))]
            planned = plan(views, SUBSETS[subset], self.card.num_sms)
            calls += [other, lambda planned=planned: self.card.launch(planned)]
        both, alone = self.clock.microseconds(self.clock.graph(calls, 40), self.clock.graph(self.others, 40))
        us = 2 * both - alone
        held = None if budget is None else f"{budget:.1f} us {'yes' if us <= budget else 'NO'}"
        self.rows.row(("between other kernels", dtype, subset, size_name(size), us, size / us / 1e3, None, held, None, None))


def turned(count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rows = 1 << (count.bit_length() // 2)
    return (rows, count // rows), (1, rows)


def columns(count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (count // 2048, 1000), (2048, 1)


def heads(count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    batch = count // (1024 * 16 * 64)
    return (batch, 16, 1024, 64), (1 << 20, 64, 1024, 1)


def steps(bench: Bench, *, quick: bool) -> Iterator[Callable[[], None]]:
    """What is measured, the rows with a budget first, size by size (buffers are made anew for each)."""
    measure, subsets = bench.measure, ("all",) if quick else tuple(SUBSETS)
    for size in (KIB, 8 * KIB, 64 * KIB, MIB):
        for subset in subsets:
            budget = 2.0 if size <= 8 * KIB else None
            yield lambda size=size, subset=subset, budget=budget: bench.between("bfloat16", size, subset, budget)
            yield lambda size=size, subset=subset: measure("contiguous", "bfloat16", size, subset)
        yield lambda size=size: measure("contiguous", "float32", size)
    for size, budget in ((64 * MIB, 0.75), (GIB, 0.9)):
        for subset in subsets:
            for dtype in ("bfloat16", "float32"):
                yield lambda size=size, dtype=dtype, subset=subset, budget=budget: measure("contiguous", dtype, size, subset, budget=budget)
            yield lambda size=size, subset=subset: measure("misaligned by one element", "bfloat16", size, subset, offset=1, budget=0.5)
            yield lambda size=size, subset=subset: measure("transposed", "bfloat16", size, subset, layout=turned, budget=0.3)
        yield lambda size=size: measure("misaligned by one element", "float32", size, offset=1, budget=0.5)
    yield lambda: measure("64 segments", "bfloat16", 64 * MIB, segments=64)
    for size in (4 * MIB, 12 * MIB, 24 * MIB, 48 * MIB):  # most of a training step
        for subset in subsets:
            yield lambda size=size, subset=subset: measure("contiguous", "bfloat16", size, subset)
        yield lambda size=size: measure("contiguous", "float32", size)
        yield lambda size=size: measure("heads [B,16,1024,64] of [B,1024,16,64]", "bfloat16", size, layout=heads)
        yield lambda size=size: measure("4 segments", "bfloat16", size, segments=4)
    if quick:
        return
    for dtype in ("float16", "float64", "int64", "int32", "uint8", "float8_e4m3fn", "complex64"):
        yield lambda dtype=dtype: measure("contiguous", dtype, 64 * MIB)
    for dtype in ("float32", "float16", "uint8"):
        yield lambda dtype=dtype: measure("transposed", dtype, 64 * MIB, layout=turned)
    for dtype in ("bfloat16", "float32"):
        yield lambda dtype=dtype: measure("columns 0:1000 of 2048", dtype, 64 * MIB, layout=columns)
        yield lambda dtype=dtype: measure("heads [B,16,1024,64] of [B,1024,16,64]", dtype, 64 * MIB, layout=heads)
        yield lambda dtype=dtype: measure("statistics too", dtype, 64 * MIB, flags=STATISTICS)
    for times in (1, 2, 3):
        num_sms = bench.card.num_sms * times // 4
        yield lambda times=times, num_sms=num_sms: measure(
            f"contiguous, {times} blocks a multiprocessor", "bfloat16", 64 * MIB, num_sms=num_sms
        )
    yield lambda: measure("64 segments", "bfloat16", MIB, segments=64)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one kernel, the rows with a budget, less than a minute")
    parser.add_argument("--large", action="store_true", help="also check tensors of more than 4 GiB, on the CPU too")
    parser.add_argument("--dry-run", action="store_true", help="checks only, over the CPU emulation")
    parser.add_argument("--variants", action="store_true", help="also with other numbers of registers, each compiled anew")
    parser.add_argument("--seconds", type=float, default=500.0, help="begin no further row after so long")
    parser.add_argument("--out", type=Path, default=Path(os.environ["OUT"]) / "kernels.md" if os.environ.get("OUT") else None)
    options = parser.parse_args()
    until = time.monotonic() + (min(options.seconds, 50) if options.quick else options.seconds)
    rows = Rows(options.out)
    host = np.random.default_rng(1).integers(0, 256, size=8 * MIB, dtype=np.uint8)
    subsets = {"all": 0} if options.quick else SUBSETS
    if options.dry_run:
        host = host[-host.ctypes.data % 256 :]
        return 0 if checks(rows, Device(num_sms=1), host, host.ctypes.data, small=True, subsets={"all": 0}) else 1
    card = Card(variants=("og_all",) if options.quick else ("og_all", "og_alls", "og_bag", "og_mix"))
    rows.line(f"\n{where('cuda')} Compiled in {card.compile_seconds:.1f} s.")
    data = card.torch.from_numpy(host).cuda()
    right = checks(rows, card, host, data.data_ptr(), small=options.quick, subsets=subsets, large=options.large)
    rows.head("Kernels: speed", "Share: bytes read per second against those that a copy reads and writes.", COLUMNS)
    measured(rows, steps(Bench(card, rows, 3 if options.quick else 7), quick=options.quick), until)
    for blocks in (2, 3, 5) if options.variants else ():
        if time.monotonic() < until:
            other = Card((f"-DOG_RESIDENT_BLOCKS={blocks}",), ("og_all",))
            rows.head(f"Kernels: registers for {blocks} blocks a multiprocessor", f"Compiled in {other.compile_seconds:.1f} s.", COLUMNS)
            measured(rows, steps(Bench(other, rows, 5), quick=True), until)
    return 0 if right else 1


def measured(rows: Rows, planned: Iterator[Callable[[], None]], until: float) -> None:
    left = 0
    for step in planned:
        if time.monotonic() >= until:
            left += 1
            continue
        step()
    if left:
        rows.line(f"\n{left} rows left out: the time was up.")


if __name__ == "__main__":
    raise SystemExit(main())
