"""A program's host tensors digested through the real launch path on the fake driver: what a CUDA training does, without a card."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opguard_core.probe import backends, cuda, tensor
from opguard_core.probe.asking import Arrived, Record, View, Views
from tests.support.fake_cuda import FakeCuda


class OnHost:
    """Meets `promise.Backend`; made after the capture has begun, as on a card, where the first tensor comes late.

    Args:
        folder: For copies of libraries.
        environ: ``os.environ``: the driver is found where the launch path looks for it.
    """

    name = "cuda"

    def __init__(self, folder: Path, environ: dict[str, str] | Any) -> None:
        self.fake = FakeCuda(folder)
        environ["OPGUARD_LIBCUDA"] = str(self.fake.path)
        cuda._handles = self.fake.handles
        launcher = cuda.prober()
        assert isinstance(launcher, cuda.Launcher), launcher
        self.launcher, self.stream = launcher, self.fake.stream()

    def install(self) -> None:
        """Have every host tensor come here from now on."""
        tensor._HOST = frozenset({"nothing answers at once"})
        tensor._kinds.clear()
        backends.install("cpu", self, "the fake driver")

    def hold(self) -> None:
        """No record is copied until somebody waits for one."""
        self.fake.driver.fake_hold_copies(1)

    def reset_device(self) -> None:
        """The program destroys its context: every further call of the driver fails."""
        self.fake.driver.fake_kill_device(1)

    def submit(self, views: Sequence[View]) -> Any:
        """As `Backend.submit`; the kernels have run when it returns, since the host's memory does not wait for them."""
        there = views.moved(0, self.stream) if isinstance(views, Views) else [view._replace(device=0, stream=self.stream) for view in views]
        tickets = self.launcher.submit(there)
        self.fake.finish(self.stream)
        return tickets

    def take(self) -> list[Record | Arrived]:
        """As `Backend.take`."""
        return self.launcher.take()

    def wait(self, ticket: int, timeout_s: float) -> None:
        """As `Backend.wait`; records come now."""
        self.fake.driver.fake_hold_copies(ctypes.c_int(0))
        self.launcher.wait(ticket, timeout_s)

    def report(self) -> dict[str, Any]:
        """As `Backend.report`."""
        return self.launcher.report()
