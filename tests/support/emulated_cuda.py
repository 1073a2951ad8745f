"""Launches of the fingerprint kernels on the CPU, over `emulated_kernels.cpp`: the ring, the scratch and the plan are the real ones.

Also what `tests/gpu/kernels.py` uses to plan its launches: `plan` needs no GPU and no emulation.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES, FLOAT8, Widening

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("emulated_kernels.cpp")
MAX_DIMS, MAX_SEGMENTS, THREADS = 24, 64, 256
NO_VALUE64, NO_ELEMENTS, STATISTICS, REGIONS_SHIFT = 1, 2, 4, 8
TRIVIAL, HAS_STATISTICS, LOST, ELEMENTS_ABSENT, VALUE64_ABSENT = 1, 2, 4, 8, 16
F64, I64 = 15, 16
ENTRY_BYTES, RING_BYTES = 96, 64

RECORD = np.dtype(
    [
        *(
            (name, "<u8")
            for name in ("ticket", "occurrence", "mix64", "value64", "bag64", "xor64", "t_device_ns", "nan_count", "inf_count")
        ),
        ("max_abs", "<f4"),
        ("flags", "<u4"),
        ("region", "<u4"),
        ("reserved", "<u4"),
        ("check", "<u8"),
    ]
)


class View(ctypes.Structure):
    """``og_view``."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("numel", ctypes.c_int64),
        ("widening", ctypes.c_int32),
        ("item_bytes", ctypes.c_int32),
        ("component_bytes", ctypes.c_int32),
        ("num_dims", ctypes.c_int32),
        ("flip", ctypes.c_uint64 * 2),
        ("sizes", ctypes.c_int64 * MAX_DIMS),
        ("strides", ctypes.c_int64 * MAX_DIMS),
    )


class Header(ctypes.Structure):
    """``og_header``."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("ring", "entries", "scratch", "occurrence", "ticket")),
        *((name, ctypes.c_uint32) for name in ("capacity", "num_segments", "num_blocks")),
        ("flipped", ctypes.c_uint32 * 2),
        ("reserved", ctypes.c_uint32),
    )


class Planned(ctypes.Structure):
    """``og_planned``: ``header`` is the beginning of the parameter, whose whole length is ``launch_bytes``."""

    _fields_ = (
        ("header", Header),
        ("rest", ctypes.c_uint8 * (4088 - ctypes.sizeof(Header))),
        *((name, ctypes.c_uint32) for name in ("kernel", "grid", "num_views", "num_segments", "launch_bytes", "padding")),
    )


class Place(NamedTuple):
    """An array in memory that ``view_of`` describes; ``strides`` in elements."""

    pointer: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    flip: tuple[int, int] = (0, 0)


@functools.cache
def library() -> Any:
    """The emulated kernels, compiled once per change of their sources into the temporary folder of this user."""
    sources = sorted(
        [*(ROOT / "cuda").glob("*.cuh"), *(ROOT / "cuda").glob("*.h"), ROOT / "cuda" / "fingerprint.cu", *SOURCE.parent.glob("*emulat*")]
    )
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources if path.is_file())).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / f"opguard-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    built = folder / f"emulated-kernels-{digest}.so"
    if not built.exists():
        compiler = os.environ.get("CXX", "g++")
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-U_FORTIFY_SOURCE", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
        scratch = folder / f".{built.name}.{os.getpid()}"
        subprocess.run(
            [compiler, *flags, "-I", str(ROOT / "cuda"), "-I", str(SOURCE.parent), "-o", str(scratch), str(SOURCE)], check=True, timeout=240
        )
        scratch.replace(built)
    loaded = ctypes.CDLL(str(built))
    loaded.og_kernel_name.restype = ctypes.c_char_p
    loaded.og_emulated_problem.restype = ctypes.c_char_p
    loaded.og_emulated_check.restype = ctypes.c_uint64
    loaded.og_emulated_check.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
    return loaded


def view_of(place: Place) -> View:
    element = ELEMENT_TYPES[place.dtype]
    widening = int(element.widening)
    if element.widening == Widening.TABLE8:
        widening += list(FLOAT8).index(place.dtype)
    elif place.dtype in ("float64", "complex128"):
        widening = F64
    elif place.dtype == "int64":
        widening = I64
    numel = int(np.prod(place.shape, dtype=np.int64))
    view = View(place.pointer, numel, widening, element.item_bytes, element.component_bytes, len(place.shape))
    view.flip[:] = place.flip
    for k, (length, step) in enumerate(zip(place.shape, place.strides, strict=True)):
        view.sizes[k], view.strides[k] = length, step * element.item_bytes
    return view


def plan(views: list[View], flags: int = 0, num_sms: int = 132) -> Planned:
    """The parameter of the next launch for the front of ``views``; where its records go is not filled in.

    Raises:
        ValueError: A view cannot be read.
    """
    loaded = library()
    for view in views:
        problem = loaded.og_emulated_problem(ctypes.byref(view))
        if problem:
            raise ValueError(problem.decode())
    planned = Planned()
    loaded.og_emulated_plan(ctypes.byref(planned), (View * len(views))(*views), len(views), flags, num_sms)
    return planned


def kernel_name(planned: Planned) -> str:
    name: bytes = library().og_kernel_name(planned.kernel)
    return name.decode()


class Device:
    """One ring with scratch, in host memory.

    Args:
        capacity: Entries of the ring.
        num_sms: What the plan is told: more of them, more blocks.
    """

    def __init__(self, capacity: int = 256, num_sms: int = 3) -> None:
        self.capacity, self.num_sms, self.tickets, self.taken = capacity, num_sms, 1, 0
        self.control = np.zeros(RING_BYTES // 8, dtype="<u8")
        room = np.full(capacity * ENTRY_BYTES + 16, 0xA5, dtype=np.uint8)  # poisoned: entries need not be zeroed
        self.entries = room[-room.ctypes.data % 16 :][: capacity * ENTRY_BYTES]
        self.scratch = np.zeros(8 + 8 * MAX_SEGMENTS, dtype="<u8")
        self.occurrence = np.zeros(1, dtype="<u8")

    def launch(self, planned: Planned, *, reverse: bool = False, captured: bool = False, ticket: int | None = None) -> None:
        """Run one planned launch to its end."""
        header = planned.header
        header.ring, header.entries, header.capacity = self.control.ctypes.data, self.entries.ctypes.data, self.capacity
        header.scratch = self.scratch.ctypes.data if planned.grid > 1 else 0
        header.occurrence = self.occurrence.ctypes.data if captured else 0
        header.ticket = self.tickets if ticket is None else ticket
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(planned))
        name = kernel_name(planned).encode()
        failed = library().og_emulate_kernel_in_order(name, planned.grid, THREADS, parameters, int(reverse))
        assert failed == 0, (name, failed)
        assert not self.scratch.any(), "a launch leaves its scratch zeroed"

    def take(self) -> np.ndarray:
        """All records not yet taken, in order of their positions; each has passed its check."""
        claimed, found = int(self.control[0]), []
        for position in range(self.taken, claimed):
            at = position % self.capacity * ENTRY_BYTES
            entry = self.entries[at : at + ENTRY_BYTES].view(RECORD)
            assert library().og_emulated_check(entry.ctypes.data, position) == int(entry["check"][0]), position
            found.append(entry.copy())
        self.taken = claimed
        self.control[2] = claimed
        return np.concatenate(found) if found else np.zeros(0, dtype=RECORD)

    def run(self, places: list[Place], flags: int = 0, *, reverse: bool = False) -> np.ndarray:
        """Fingerprint arrays in as many launches as they need; their records by ticket and region."""
        views = [view_of(place) for place in places]
        records = []
        while views:
            planned = plan(views, flags, self.num_sms)
            self.launch(planned, reverse=reverse)
            self.tickets += planned.num_views
            views = views[planned.num_views :]
            records.append(self.take())
        found = np.concatenate(records)
        return found[np.lexsort((found["region"], found["ticket"]))]


def digests_of(record: Any, nbytes: int) -> Digests:
    """A record as what the other implementations return."""
    xor64 = int(record["xor64"])
    return Digests(
        int(record["mix64"]),
        int(record["value64"]),
        int(record["bag64"]),
        (xor64 ^ xor64 >> 32) & 0xFFFFFFFF,
        bool(record["flags"] & TRIVIAL),
        nbytes,
    )
