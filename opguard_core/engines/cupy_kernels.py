"""CuPy kernels on torch's memory: calls of RawKernel, ElementwiseKernel and ReductionKernel objects as boundary events.

The classes are C types whose methods cannot be replaced, so the names in the module ``cupy`` become subclasses that observe their own
calls; what is made from then on is observed, wherever it is called. Functions of a RawModule, and what was made before, are observed at
rewritten callsites (`extensions.operator_of` knows them).

A kernel runs on CuPy's stream, which need not be torch's: it is probed on the one that it runs on.
"""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from opguard_core.engines.extensions import OBSERVED, arguments_text, operator_of, tensors_in
from opguard_core.engines.imports import WhenImported
from opguard_core.engines.quiet import quiet
from opguard_core.engines.shims import Patch, telling

if TYPE_CHECKING:
    from opguard_core.engines.outside import Open, OutsideCalls
    from opguard_core.engines.patches import Patches

_CLASSES = ("RawKernel", "ElementwiseKernel", "ReductionKernel")


class CupyKernels:
    """Observes calls of CuPy kernels.

    Args:
        outside: Where events are made.
    """

    def __init__(self, outside: OutsideCalls) -> None:
        self._outside = outside
        self._import: WhenImported | None = None
        self._module: ModuleType | None = None

    def install(self, patches: Patches) -> None:
        """Replace the classes, now or when the program imports CuPy."""

        def found(module: ModuleType) -> None:
            self._module = module
            for name in _CLASSES:
                if isinstance(getattr(module, name, None), type):
                    patches.keep(Patch(module, name, self._observed))

        self._import = WhenImported("cupy", found)
        self._import.watch()

    def remove(self) -> None:
        """Watch for the import no more; the names are put back by `Patches`."""
        if self._import is not None:
            self._import.stop()
            self._import = None

    def _observed(self, original: type) -> type:
        """A class whose objects observe their calls; to everybody else it is the one that it stands for."""
        launch = telling(
            original.__call__,
            lambda args, kwargs: self._begin(args[0], args[1:], kwargs, sys._getframe(2)),
            lambda call, _, error: self._end(call, error),
        )
        facts = {"__call__": launch, "__module__": original.__module__, "__qualname__": original.__qualname__}
        return type(original.__name__, (original,), {**facts, "__doc__": original.__doc__, OBSERVED: True})

    def _begin(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any) -> Open | None:
        """A kernel is about to be launched. Never raises."""
        outside = self._outside
        if not outside.watches():
            return None
        try:
            with quiet():
                tensors = tensors_in(args, kwargs, outside.addresses)
            if not tensors:
                return None
            with self._on_its_stream():
                return outside.before(operator_of(kernel), tensors, arguments_text(args, kwargs, outside.addresses), frame)
        except Exception as error:  # noqa: BLE001  the step guard
            outside.context.guard.caught("CuPy kernel", error)
            return None

    def _end(self, call: Open | None, error: BaseException | None) -> None:
        """It has been launched. Never raises."""
        if call is None:
            return
        with self._on_its_stream():
            if error is not None:
                self._outside.raised(call, error)
            else:
                self._outside.after(call)

    def _on_its_stream(self) -> AbstractContextManager[Any]:
        """Make torch's stream the one that CuPy launches on, where there is a device."""
        cuda = getattr(self._module, "cuda", None)
        if cuda is None or not torch.cuda.is_initialized():
            return contextlib.nullcontext()
        try:
            handle = int(cuda.get_current_stream().ptr)
            if handle == torch.cuda.current_stream().cuda_stream:
                return contextlib.nullcontext()
            return torch.cuda.stream(torch.cuda.ExternalStream(handle))
        except Exception as error:  # noqa: BLE001  the step guard: looked at on torch's stream, and said so
            self._outside.context.guard.caught("stream of CuPy", error)
            return contextlib.nullcontext()
