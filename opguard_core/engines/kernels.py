"""Kernels that Python launches past torch's dispatcher, of all the packages that we know to launch such."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opguard_core.engines.cupy_kernels import CupyKernels
from opguard_core.engines.triton import TritonKernels

if TYPE_CHECKING:
    from opguard_core.engines.outside import OutsideCalls
    from opguard_core.engines.patches import Patches


class Kernels:
    """Observes launches of Triton's and CuPy's kernels.

    Args:
        outside: Where events are made.
    """

    def __init__(self, outside: OutsideCalls) -> None:
        self._triton, self._cupy = TritonKernels(outside), CupyKernels(outside)

    def install(self, patches: Patches) -> None:
        """Replace what launches, now or when the program imports it."""
        self._triton.install(patches)
        self._cupy.install(patches)

    def remove(self) -> None:
        """Watch for imports no more; what was replaced is put back by `Patches`."""
        self._triton.remove()
        self._cupy.remove()

    def report(self) -> dict[str, int]:
        """What the manifest says: launches whose kernel's text told what it writes, and the others."""
        return self._triton.report()
