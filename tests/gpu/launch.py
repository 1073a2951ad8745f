"""The launch path on a card: the digests that arrive, what a probe costs the host, replays, and that nobody waits for the device.

    python3 -m tests.gpu.launch [--out FILE] [--dry-run]

About a minute; every row is written as soon as it is known. ``--dry-run`` goes through the same sections over the fake driver, with host
memory as the device: its times mean nothing, its answers have to be the same.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from opguard_core import builds
from opguard_core.fingerprint import cpu
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from opguard_core.probe import cuda, tensor
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import Layout, View
from tests.gpu.rows import Rows, where

LOOPS = Path(__file__).with_name("launch_loops.c")
BUDGET_US = 1.0  # DESIGN 13: an empty launch from C in the same loop, and so much more
CHUNK, CHUNKS = 100, 60  # launches are queued about a thousand deep: beyond it they block, whoever launches
SPIN_CYCLES = 600_000_000  # some 0.3 s on a card
DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int8", "bool", "float8_e4m3fn", "complex64")


class Card:
    """A real device."""

    device = "cuda:0"

    def __init__(self) -> None:
        found = cuda.prober()
        if isinstance(found, Unreadable):
            raise SystemExit(f"no launch path: {found.reason}")
        self.launcher = found

    def stream(self) -> int:
        return int(torch._C._cuda_getCurrentRawStream(0))

    def finish(self) -> None:
        torch.cuda.current_stream().synchronize()  # this script's own wait

    def address(self, t: torch.Tensor) -> int:
        return t.data_ptr()

    def replays(self, body: Callable[[], None], number: int) -> None:
        """Record ``body`` into a CUDA graph and launch that ``number`` times."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            body()
        for _ in range(number):
            graph.replay()
        self.finish()

    def empty_kernel(self) -> tuple[int, int]:
        """Addresses of cuLaunchKernel and of a kernel that does nothing."""
        import cupy

        self._kept = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
        driver = ctypes.CDLL("libcuda.so.1")
        return ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p).value or 0, int(self._kept.kernel.ptr)

    def spin(self) -> None:
        torch.cuda._sleep(SPIN_CYCLES)

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(0)[0])


class DryRun(Card):
    """The fake driver; torch's CPU tensors are its device memory."""

    device = "cpu"

    def __init__(self) -> None:
        from tests.support.fake_cuda import FakeCuda

        self._folder = tempfile.TemporaryDirectory(prefix="opguard-launch-")
        self.fake = FakeCuda(Path(self._folder.name), ring_records=cuda.RING_RECORDS)
        self.launcher = self.fake.launcher
        self._stream = self.fake.stream()

    def stream(self) -> int:
        return self._stream

    def finish(self) -> None:
        self.fake.finish(self._stream)

    def replays(self, body: Callable[[], None], number: int) -> None:
        self.fake.capture(self._stream)
        body()
        graph = self.fake.end_capture(self._stream)
        for _ in range(number):
            self.fake.replay(graph, self._stream)
        self.finish()

    def empty_kernel(self) -> tuple[int, int]:
        driver = self.fake.driver
        driver.stand_in_nothing.restype = ctypes.c_void_p
        context = ctypes.c_void_p()
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        driver.cuCtxSetCurrent(context)
        return ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p).value or 0, int(driver.stand_in_nothing(0))

    def spin(self) -> None:
        self.fake.hold(self._stream)

    def let_go(self) -> None:
        self.fake.hold(self._stream, False)

    def free_bytes(self) -> int:
        return -self.fake.counts().device_bytes


def view(card: Card, t: torch.Tensor) -> View:
    """A tensor as the probe describes it."""
    name = str(t.dtype).removeprefix("torch.")
    return View(t, Layout(ELEMENT_TYPES[name], tuple(t.shape), t.stride()), card.address(t), 0, card.stream())


def arrived(card: Card, tickets: Sequence[Any], number: int | None = None) -> list[cuda.Delivered]:
    """All records of some tickets, in their order."""
    wanted, found, until = set(tickets), [], time.monotonic() + 20
    for ticket in tickets:
        if not isinstance(ticket, int):
            raise SystemExit(f"refused: {ticket.reason}")
    while len(found) < (number or len(wanted)) and time.monotonic() < until:
        card.launcher.wait(max(wanted), 0.01)
        found += [one for one in card.launcher.take_all() if one.ticket in wanted]
    return sorted(found, key=lambda one: (one.occurrence, one.ticket))


def tensors(card: Card) -> list[torch.Tensor]:
    """Random bits of many dtypes and layouts, from a generator of our own."""
    generator, made = torch.Generator().manual_seed(3), []
    for name in DTYPES:
        dtype = getattr(torch, name)
        for shape in ((1,), (37,), (129, 65), (3, 67, 130), (1000, 1001)):
            count = torch.Size(shape).numel() * dtype.itemsize
            raw = torch.randint(0, 2 if name == "bool" else 256, (count,), dtype=torch.uint8, generator=generator)
            t = raw.view(dtype).view(shape).to(card.device)
            made += [t, t.transpose(0, -1), t[..., ::2]]
    return made


def truth(t: torch.Tensor) -> Any:
    return tensor.fingerprint(t.cpu() if t.device.type != "cpu" else t)


def equality(card: Card, rows: Rows) -> bool:
    rows.head("Digests through the launch path", "Against the CPU twin, on copies.", ("tensors in a launch", "tensors", "equal", "lost"))
    made, all_equal = tensors(card), True
    wanted = [truth(t) for t in made]
    for at_once in (1, 8, 64):
        tickets: list[Any] = []
        for start in range(0, len(made), at_once):
            tickets += card.launcher.submit([view(card, t) for t in made[start : start + at_once]])
        found = arrived(card, tickets)
        equal = sum(one.digests == right for one, right in zip(found, wanted, strict=False))
        all_equal = all_equal and equal == len(made)
        rows.row((at_once, len(made), equal, sum(one.lost for one in found)))
    return all_equal


def replays(card: Card, rows: Rows) -> bool:
    rows.head(
        "Replays of a captured launch", "Values change from replay to replay.", ("replays", "records", "right value, right order", "lost")
    )
    x, y = torch.arange(1000, dtype=torch.float32).to(card.device), torch.ones(77, device=card.device)
    tickets: list[Any] = []
    number = 20

    def body() -> None:
        if card.device != "cpu":
            x.add_(1)
        tickets.extend(card.launcher.submit([view(card, x), view(card, y)]))

    card.replays(body, number)
    found = arrived(card, tickets, 2 * number)
    right, value = 0, torch.arange(1000, dtype=torch.float32)
    for occurrence in range(number):
        value += 1 if card.device != "cpu" else 0
        pair = found[2 * occurrence : 2 * occurrence + 2]
        right += [(one.occurrence, one.digests) for one in pair] == [(occurrence, truth(value)), (occurrence, truth(y))]
    rows.row((number, len(found), right, sum(one.lost for one in found)))
    return right == number


def host_time(card: Card, rows: Rows) -> None:
    columns = ("tensors", "empty launch, us", "probe from C, us", "more, us", "budget, us", "kept", "probe from Python, us")
    rows.head("Host time of a probe", f"Medians over {CHUNKS} chunks of {CHUNK} launches, both in one C loop; 4 kB a tensor.", columns)
    built = builds.obtain(builds.Recipe(name="launch_loops", source=LOOPS, flags=("-O2",)), lambda path: ctypes.CDLL(str(path)))
    if isinstance(built, builds.NotBuilt):
        raise SystemExit(built.reason)
    loops = built.opened
    for name in ("loop_empty", "loop_submit", "loop_take"):
        getattr(loops, name).restype = ctypes.c_int64
    launch, nothing = (ctypes.c_void_p(address) for address in card.empty_kernel())
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    api, stream = ctypes.c_void_p(pointer(card.launcher.api, b"og_probe_api")), ctypes.c_void_p(card.stream())
    for number in (1, 8, 64):
        views = [view(card, torch.rand(1024).to(card.device)) for _ in range(number)]
        arrived(card, card.launcher.submit(views))
        forms = b"".join(one.address.to_bytes(8, "little") + one.layout.prepared[8:] for one in views)
        empty, probe, python = [], [], []
        for _ in range(CHUNKS):
            empty.append(loops.loop_empty(launch, nothing, stream, CHUNK) / CHUNK / 1e3)
            card.finish()
            probe.append(loops.loop_submit(api, 0, stream, forms, number, 0, CHUNK) / CHUNK / 1e3)
            card.finish()
            loops.loop_take(api, ctypes.c_int64(CHUNK * number), ctypes.c_int64(10**9))
        for _ in range(CHUNKS // 4):
            begun = time.perf_counter_ns()
            for _ in range(CHUNK):
                tickets = card.launcher.submit(views)
            python.append((time.perf_counter_ns() - begun) / CHUNK / 1e3)
            card.finish()
            arrived(card, tickets)
        more = statistics.median(probe) - statistics.median(empty)
        rows.row(
            (number, statistics.median(empty), statistics.median(probe), more, BUDGET_US, more <= BUDGET_US, statistics.median(python))
        )


def waiting(card: Card, rows: Rows) -> None:
    rows.head("While the stream is busy", "A kernel that only spins is ahead of the probes.", ("what", "us", "spin still running"))
    one = [view(card, torch.rand(1024).to(card.device))]
    arrived(card, card.launcher.submit(one))
    done = None if card.device == "cpu" else torch.cuda.Event()
    card.spin()
    if done is not None:
        done.record()
    begun = time.perf_counter_ns()
    tickets = [ticket for _ in range(CHUNK) for ticket in card.launcher.submit(one)]
    took_us = (time.perf_counter_ns() - begun) / 1e3
    rows.row((f"{CHUNK} submits", took_us, done is None or not done.query()))
    begun = time.perf_counter_ns()
    early = card.launcher.take_all()
    rows.row((f"take, {len(early)} records", (time.perf_counter_ns() - begun) / 1e3, done is None or not done.query()))
    if isinstance(card, DryRun):
        card.let_go()
    rows.row((f"all {len(arrived(card, tickets))} delivered in the end", (time.perf_counter_ns() - begun) / 1e3, False))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    begun = time.monotonic()
    rows = Rows(options.out)
    card = DryRun() if options.dry_run else Card()
    rows.line(f"\n## Launch path\n\n{where(card.device)}{' Dry run: times mean nothing.' if options.dry_run else ''}")
    before = card.free_bytes()
    opened = card.launcher.open_device(0)
    if opened is not None:
        raise SystemExit(f"no launch path: {opened.reason}")
    right = equality(card, rows)
    right = replays(card, rows) and right
    waiting(card, rows)
    host_time(card, rows)
    rows.head("Memory and counts", "Free device memory before minus after also has the loaded kernels.", ("what", "value"))
    rows.row(("free device memory gone, MiB", (before - card.free_bytes()) / 2**20))
    for name, value in card.launcher.report().items():
        rows.row((name, value))
    rows.line(f"\nAll digests right: {right}. {time.monotonic() - begun:.0f} s.")
    card.launcher.close()
    return 0 if right and cpu.implementation() else 1


if __name__ == "__main__":
    raise SystemExit(main())
