"""What `kernels.py` runs on: a ring on the card, launches straight through the driver, and the checks of every record, bit for bit."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np

from opguard_core.fingerprint import cpu
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from opguard_core.probe.kernel_build import VARIANTS
from tests.gpu.rows import Rows
from tests.support import emulated_cuda
from tests.support.emulated_cuda import NO_ELEMENTS, NO_VALUE64, Place, digests_of, kernel_name, plan, view_of

MIB, GIB = 1 << 20, 1 << 30
CAPACITY = 1 << 18


class Card:
    """The kernels of device 0, a ring and scratch in its memory. Same calls as `emulated_cuda.Device`, memory on the card.

    Args:
        options: Further options for NVRTC.
        variants: Of the kernels; only these are compiled.
    """

    def __init__(self, options: tuple[str, ...] = (), variants: tuple[str, ...] = VARIANTS) -> None:
        import cupy
        import torch

        self.torch = torch
        self.num_sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.driver = ctypes.CDLL("libcuda.so.1")
        folder = emulated_cuda.ROOT / "cuda"
        lines = (folder / "fingerprint.cu").read_text().splitlines()
        wanted = tuple(f"FINGERPRINT({variant}," for variant in variants)
        code = "\n".join(line for line in lines if not line.startswith("FINGERPRINT(") or line.startswith(wanted))
        newest = max(path.stat().st_mtime_ns for path in folder.iterdir())  # CuPy's cache does not look into headers
        flags = (
            f"-I{folder}",
            "--std=c++17",
            "--device-as-default-execution-space",
            "--split-compile=0",
            f"-DOG_SOURCES={newest}",
            *options,
        )
        start = time.monotonic()
        torch.zeros(1, device="cuda")
        self.module = cupy.RawModule(code=code, options=flags, backend="nvrtc")
        self.module.compile()
        self.compile_seconds = time.monotonic() - start
        self.functions: dict[str, int] = {}
        self.control = torch.zeros(8, dtype=torch.int64, device="cuda")
        self.entries = torch.full((CAPACITY * emulated_cuda.ENTRY_BYTES,), 0xA5, dtype=torch.uint8, device="cuda")
        self.scratch = torch.zeros(8 + 8 * emulated_cuda.MAX_SEGMENTS, dtype=torch.int64, device="cuda")

    def launch(self, planned: Any, ticket: int = 1, occurrence: int = 0) -> None:
        header = planned.header
        header.ring, header.entries, header.capacity = self.control.data_ptr(), self.entries.data_ptr(), CAPACITY
        header.scratch, header.occurrence, header.ticket = self.scratch.data_ptr(), occurrence, ticket
        name = kernel_name(planned)
        if name not in self.functions:
            self.functions[name] = int(self.module.get_function(name).kernel.ptr)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(planned))
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        failed = self.driver.cuLaunchKernel(
            ctypes.c_void_p(self.functions[name]), planned.grid, 1, 1, emulated_cuda.THREADS, 1, 1, 0, stream, parameters, None
        )
        if failed:
            raise RuntimeError(f"cuLaunchKernel of {name}: {failed}")

    def clear(self) -> None:
        """Forget all records; in stream order."""
        self.control.zero_()

    def run(self, places: list[Place], flags: int = 0) -> np.ndarray:
        """As `emulated_cuda.Device.run`; waits for the card."""
        self.clear()
        views, ticket = [view_of(place) for place in places], 1
        while views:
            planned = plan(views, flags, self.num_sms)
            self.launch(planned, ticket)
            ticket += planned.num_views
            views = views[planned.num_views :]
        found = self.records()
        return found[np.lexsort((found["region"], found["ticket"]))]

    def records(self) -> np.ndarray:
        """All records since `clear`, in the order of the ring; waits for the card."""
        claimed, lost = self.control[:2].tolist()
        assert lost == 0
        assert not self.scratch.any().item(), "scratch is left zeroed"
        found = self.entries[: claimed * emulated_cuda.ENTRY_BYTES].cpu().numpy().view(emulated_cuda.RECORD)
        for position, record in enumerate(found):
            words = np.frombuffer(record.tobytes(), dtype=np.uint8)
            assert emulated_cuda.library().og_emulated_check(words.ctypes.data, position) == int(record["check"]), position
        return found


LAYOUTS = [
    ((0,), (1,)),
    ((1,), (1,)),
    ((3,), (1,)),
    ((1001,), (1,)),
    ((70001,), (1,)),
    ((1 << 18,), (1,)),
    ((300, 260), (1, 300)),
    ((257, 301), (1, 259)),
    ((3, 129, 65), (129 * 66, 1, 130)),
    ((4, 64, 6, 50), (6 * 64 * 51, 1, 64 * 51, 64)),
    ((200, 130), (140, 1)),
    ((5000,), (3,)),
    ((100, 7), (9, 1)),
    ((40, 500), (0, 1)),
    ((2, 6, 40, 64), (40 * 1152, 64, 1152, 1)),
    ((3, 7, 41, 48), (41 * 336, 48, 336, 1)),
    ((201, 48), (64, 1)),
    ((30, 1000), (2048, 1)),
]


def check_layouts(device: Any, host: np.ndarray, base: int, layouts: list[Any], subsets: dict[str, int]) -> tuple[int, list[str]]:
    """Every dtype, layout, offset and subset against the CPU twin on the same bytes; how many, and what was wrong."""
    places, wrong = [], []
    for dtype, element in ELEMENT_TYPES.items():
        for offset in (0, 1, 5):
            places += [Place(offset * element.item_bytes, dtype, *layout) for layout in layouts]
    expected = [cpu.fingerprint(host.ctypes.data + place.pointer, *place[1:]) for place in places]
    moved = [place._replace(pointer=base + place.pointer) for place in places]
    for name, flags in subsets.items():
        for place, want, record in zip(places, expected, device.run(moved, flags), strict=True):
            absent = {"value64": 0} if flags & NO_VALUE64 else {"value64": 0, "bag64": 0} if flags & NO_ELEMENTS else {}
            if digests_of(record, want.nbytes) != want._replace(**absent):
                wrong.append(f"{place} {name}")
    return len(places) * len(subsets), wrong


def check_large(card: Card) -> tuple[int, list[str]]:
    """More than 4 GiB in one tensor, dense, misaligned and turned, against the CPU twin."""
    torch = card.torch
    generator = torch.Generator(device="cuda").manual_seed(5)
    data = torch.randint(0, 256, (4 * GIB + 3 * MIB + 7,), dtype=torch.uint8, device="cuda", generator=generator)
    host = data.cpu().numpy()
    elements = host.nbytes // 2
    side = 65536
    places = [
        Place(0, "bfloat16", (elements,), (1,)),
        Place(0, "uint8", (host.nbytes,), (1,)),
        Place(2, "bfloat16", (elements - 1,), (1,)),
        Place(0, "bfloat16", (side, elements // side), (1, side)),
    ]
    wrong = []
    for place in places:
        want = cpu.fingerprint(host.ctypes.data + place.pointer, *place[1:])
        if digests_of(card.run([place._replace(pointer=data.data_ptr() + place.pointer)])[0], want.nbytes) != want:
            wrong.append(str(place))
    return len(places), wrong


def check_alone(card: Card, host: np.ndarray, base: int) -> tuple[int, list[str]]:
    """Views in launches of their own, so that many blocks share one."""
    wrong, count = [], 0
    for dtype in ("bfloat16", "float32", "uint8", "complex128"):
        for layout in [*LAYOUTS, ((400_003,), (1,)), ((640, 640), (1, 640))]:
            for offset in (0, 1):
                place = Place(offset * ELEMENT_TYPES[dtype].item_bytes, dtype, *layout)
                want = cpu.fingerprint(host.ctypes.data + place.pointer, *place[1:])
                count += 1
                if digests_of(card.run([place._replace(pointer=base + place.pointer)])[0], want.nbytes) != want:
                    wrong.append(str(place))
    return count, wrong


def check_replay(card: Card, host: np.ndarray, base: int) -> tuple[int, list[str]]:
    """A captured launch appends its records again with every replay, in order and counted; a full ring loses and counts."""
    torch = card.torch
    places = [Place(2 * k, "bfloat16", (n,), (1,)) for k, n in enumerate((1_000_000, 3, 0, 70_000))]
    want = [cpu.fingerprint(host.ctypes.data + place.pointer, *place[1:]) for place in places]
    planned = plan([view_of(place._replace(pointer=base + place.pointer)) for place in places], 0, card.num_sms)
    occurrence = torch.zeros(1, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(2):
            card.launch(planned, 9, occurrence.data_ptr())
    card.clear()
    for _ in range(50):
        graph.replay()
    records, wrong = card.records(), []
    if records["ticket"].tolist() != [9, 10, 11, 12] * 100 or records["occurrence"].tolist() != [k // 4 for k in range(400)]:
        wrong.append("order")
    if (np.diff(records["t_device_ns"].astype(np.int64)) < 0).any():
        wrong.append("device clock")
    wrong += [f"record {k}" for k, record in enumerate(records) if digests_of(record, want[k % 4].nbytes) != want[k % 4]]
    card.control[0] = CAPACITY - 2  # room for two: a launch of four is lost whole
    before = card.entries.clone()
    card.launch(planned)
    if card.control[:2].tolist() != [CAPACITY - 2, 4] or not torch.equal(before, card.entries) or card.scratch.any().item():
        wrong.append("full ring")
    card.clear()
    return 401, wrong


def report_check(rows: Rows, what: str, outcome: tuple[int, list[str]], seconds: float) -> bool:
    count, wrong = outcome
    rows.row((what, count, len(wrong), "; ".join(wrong[:3]), seconds))
    return not wrong


def checks(rows: Rows, device: Any, host: np.ndarray, base: int, *, small: bool, subsets: dict[str, int], large: bool = False) -> bool:
    rows.head(
        "Kernels: bit for bit", "Against the CPU twin on the same bytes, random, fixed seed.", ("what", "cases", "wrong", "which", "s")
    )
    start = time.monotonic()
    layouts = [layout for layout in LAYOUTS if not small or np.prod(layout[0]) < 8000]
    right = report_check(
        rows, "every dtype, layout and offset", check_layouts(device, host, base, layouts, subsets), time.monotonic() - start
    )
    if isinstance(device, Card):
        for what, check in (("one view a launch", check_alone), ("replay of a CUDA graph, full ring", check_replay)):
            start = time.monotonic()
            outcome = check(device, host, base)
            right &= report_check(rows, what, outcome, time.monotonic() - start)
    if isinstance(device, Card) and large:
        start = time.monotonic()
        outcome = check_large(device)
        right &= report_check(rows, "more than 4 GiB", outcome, time.monotonic() - start)
    return right
