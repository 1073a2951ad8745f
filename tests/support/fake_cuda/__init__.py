"""The launch path over a driver whose device is host memory: a fresh copy of both for each use, so that no state is shared."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from opguard_core import builds
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES, FLOAT8, float8_table
from opguard_core.probe import cuda, cuda_kernels, launch_recipe
from opguard_core.probe.promise import Layout, View
from opguard_core.probe.python_launch import PythonLaunch

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
NON_BLOCKING = 1
PARTS = ("libcuda.c", "stand_in.c", "fake.h")
PATIENCE_S = 60.0


class Counts(ctypes.Structure):
    """``fake_counts``."""

    _fields_ = tuple(
        (name, ctypes.c_longlong)
        for name in (
            "waits",
            "blocking_streams",
            "capture_violations",
            "launches",
            "copies",
            "allocations",
            "pushes",
            "device_bytes",
            "pinned_bytes",
            "looks",
        )
    )


def driver_recipe() -> builds.Recipe:
    """The fake driver as one library."""
    headers = [HERE / name for name in PARTS]
    headers += [REPOSITORY / "cuda" / name for name in ("plan.h", "probe_api.h")]
    headers += [REPOSITORY / "opguard_core" / "fingerprint" / name for name in ("fingerprint.c", "dense.h")]
    return builds.Recipe(
        name="fake_cuda",
        says="the fake CUDA driver",
        source=HERE / "driver.c",
        headers=tuple(headers),
        flags=("-O2", "-g", "-std=gnu11", "-pthread"),
        libraries=("-ldl",),
    )


def built(recipe: builds.Recipe | builds.NotBuilt) -> Path:
    """The built file, or a skip with the reason."""
    found = recipe if isinstance(recipe, builds.NotBuilt) else builds.obtain(recipe)
    if isinstance(found, builds.NotBuilt):
        pytest.skip(found.reason)
    return found.path


def _extension(path: Path) -> Any:
    shutil.copy(built(launch_recipe.recipe()), path)
    return cuda.load(path)


class FakeCuda:
    """A fake driver and a launch path of its own on it.

    Args:
        folder: For the copies of the two libraries.
        ring_records: Of the launch path's ring.
        captured_bytes: Its room for captured launches.
        flags: Of every submit.
        python: The launch path in Python.
        emulator: The address of ``og_emulate_kernel``: the kernels' own text instead of the stand-in.
    """

    def __init__(
        self,
        folder: Path,
        *,
        ring_records: int = 1024,
        captured_bytes: int = 1 << 20,
        flags: int = 0,
        emulator: int = 0,
        python: bool = False,
    ) -> None:
        self._emulator = emulator
        number = len(list(folder.glob("libcuda-*.so")))
        self.path = folder / f"libcuda-{number}.so"
        shutil.copy(built(driver_recipe()), self.path)
        self.driver = driver = ctypes.CDLL(str(self.path))
        for name in ("fake_stream", "stand_in_kernel", "stand_in_emulated_kernel"):
            getattr(driver, name).restype = ctypes.c_void_p
        self._tables = [(ctypes.c_uint32 * 256)(*float8_table(name)) for name in FLOAT8]
        for place, table in enumerate(self._tables):
            driver.stand_in_table(10 + place, table)
        self.module = PythonLaunch() if python else _extension(folder / f"launch-{number}.so")
        self.module.load(str(self.path))
        self.launcher = cuda.Launcher(self.module, self.handles, flags=flags, ring_records=ring_records, captured_bytes=captured_bytes)

    def handles(self, device: int, flags: int) -> tuple[int, ...]:
        """What CuPy would hand over: the variant of these flags, nothing for the others."""
        variant = cuda_kernels.variant_of(flags)
        return tuple(
            self._handle(place, device) if name.startswith(f"{variant}_") else 0 for place, name in enumerate(cuda_kernels.KERNELS)
        )

    def _handle(self, place: int, device: int) -> int:
        if self._emulator:
            return int(self.driver.stand_in_emulated_kernel(place, device, ctypes.c_void_p(self._emulator)))
        return int(self.driver.stand_in_kernel(place, device))

    def stream(self, device: int = 0) -> int:
        """A new stream of the program's."""
        return int(self.driver.fake_stream(device, NON_BLOCKING))

    def counts(self) -> Counts:
        """What the driver counted so far."""
        counts = Counts()
        self.driver.fake_read_counts(ctypes.byref(counts))
        return counts

    def hold(self, stream: int, held: bool = True) -> None:
        """Stop a stream, or let it go."""
        self.driver.fake_hold(ctypes.c_void_p(stream), int(held))

    def finish(self, stream: int) -> None:
        """Until all that a stream was given is done."""
        self.driver.fake_finish(ctypes.c_void_p(stream))

    def capture(self, stream: int) -> None:
        """Begin to capture, in torch's mode (global)."""
        assert self.driver.cuStreamBeginCapture_v2(ctypes.c_void_p(stream), 0) == 0

    def end_capture(self, stream: int) -> ctypes.c_void_p:
        """The graph, ready to be launched."""
        graph = ctypes.c_void_p()
        assert self.driver.cuStreamEndCapture(ctypes.c_void_p(stream), ctypes.byref(graph)) == 0
        return graph

    def replay(self, graph: ctypes.c_void_p, stream: int) -> None:
        """Launch a graph."""
        assert self.driver.cuGraphLaunch(graph, ctypes.c_void_p(stream)) == 0

    def view(self, array: Any, dtype: str = "float32", stream: int = 0, device: int = 0) -> View:
        """An array as a tensor of the device."""
        steps = tuple(step // array.itemsize for step in array.strides)
        return View(array, Layout(ELEMENT_TYPES[dtype], array.shape, steps), array.ctypes.data, device, stream)

    def submit(self, views: Sequence[View]) -> list[int]:
        """Tickets; fails if there is none."""
        tickets = self.launcher.submit(views)
        assert all(isinstance(ticket, int) for ticket in tickets), tickets
        return tickets

    def collect(self, tickets: Sequence[int]) -> dict[int, list[cuda.Delivered]]:
        """What came of each ticket, once all have come."""
        found: dict[int, list[cuda.Delivered]] = {}
        for ticket in tickets:
            self.launcher.wait(ticket, PATIENCE_S)
        while missing := [ticket for ticket in tickets if ticket not in found]:
            records = self.launcher.take_all()
            assert records, f"{len(missing)} tickets neither came nor were lost: {self.launcher.report()}"
            for record in records:
                found.setdefault(record.ticket, []).append(record)
        return found

    def collect_records(self, number: int) -> list[cuda.Delivered]:
        """So many records; for replays, whose tickets come again and again."""
        found: list[cuda.Delivered] = []
        while len(found) < number:
            found += self.launcher.take_all()
        return found

    def finish_copies(self) -> None:
        """Until the copier has looked twice more: what it knew before is told to the device."""
        seen = self.counts().looks
        while self.counts().looks < seen + 3:
            pass

    def close(self) -> None:
        """End the copier; what has not come is lost."""
        self.launcher.close(0.0)
