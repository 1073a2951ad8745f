"""Launches of generated kernels that C++ observes: all but the first of each place, and those that Python has to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from opguard_core.engines.inductor.generated import TRITON, Kernel
from opguard_core.engines.inductor.launches import PREFIX


class NativeLaunches:
    """Makes what observes launches of the common kind in C++, see ``observer/launches_python.h``.

    Args:
        module: The compiled observer.
        observer: That of this rank.
        wants: Whether this run looks at an operator more closely, which is Python's.
    """

    def __init__(self, module: Any, observer: Any, wants: Callable[[str], bool]) -> None:
        self._module, self._observer, self._wants = module, observer, wants

    def around(self, kernel: Kernel, value: Any, launch: Any, order: Callable[..., Any]) -> Any:
        """What is called for a kernel; None for one that this run looks at more closely."""
        operator = PREFIX + kernel.name
        if self._wants(operator):
            return None
        method, python = ("run", launch.run) if kernel.kind == TRITON else ("", launch)
        return self._module.kernel_launch(self._observer, operator, value, method, python, order, mutes=kernel.kind == TRITON)

    def is_ours(self, value: object) -> bool:
        """Whether this was made here."""
        return isinstance(value, self._module.KernelLaunch | self._module.Allocation)

    def allocation(self, allocate: Callable[..., Any], made: Callable[[torch.Tensor], None]) -> Any:
        """As `Allocation`."""
        return self._module.allocation(self._observer, allocate, made)
