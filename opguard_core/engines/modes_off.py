"""Where torch takes every dispatch mode off the stack, the native engine, which is none, steps aside as well.

torch does so while it prints a tensor, compiles, or folds constants: work of its own that a dispatch mode never sees. Without this the
native engine would tell of it.

Likewise where torch traces with real tensors (`make_fx`): its tracing mode stands below every other one, and computes inside its own
handler, where a dispatch mode is off. Both engines count these operators (`TRACED` in the coverage), and neither tells of them: the trace
that is made is what the program runs later.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType, TracebackType
from typing import Any

import torch
import torch.utils._python_dispatch as python_dispatch

from opguard_core.engines.coverage import Coverage
from opguard_core.engines.imports import WhenImported
from opguard_core.engines.shims import Patch, around, own

TRACED = "operators_inside_tracing"
_NAME = "_disable_current_modes"
_TRACING = "torch.fx.experimental.proxy_tensor"
_FAKE = torch._C._TorchDispatchModeKey.FAKE


def traces_real_tensors() -> bool:
    """Whether what one of torch's tracing modes is about to compute is real: no mode of fake tensors stands beside it."""
    return torch._C._get_dispatch_mode(_FAKE) is None


class ModesOff:
    """Wraps torch's context manager for that, wherever it is known by name.

    Args:
        module: The compiled observer.
        coverage: Counts what is not told.
    """

    def __init__(self, module: Any, coverage: Coverage) -> None:
        self._module, self._coverage = module, coverage
        self._patches: list[Patch] = []
        self._tracing = WhenImported(_TRACING, self._step_aside_in)

    def install(self) -> None:
        """Step aside from now on; without effect on a torch that has no such function."""
        original = getattr(python_dispatch, _NAME, None)
        if original is None:
            return
        holders = [
            module for name, module in list(sys.modules.items()) if name.startswith("torch.") and vars(module).get(_NAME) is original
        ]
        self._patches = [Patch(holder, _NAME, self._around) for holder in holders]
        self._tracing.watch()

    def remove(self) -> None:
        """Undo `install`."""
        self._tracing.stop()
        for patch in self._patches:
            patch.undo()
        self._patches = []

    def _step_aside_in(self, tracing: ModuleType) -> None:
        mode = getattr(tracing, "ProxyTorchDispatchMode", None)
        if mode is not None:
            replacement = functools.partial(around, enter=self._enter_tracing, leave=self._leave_tracing)
            self._patches.append(Patch(mode, "__torch_dispatch__", replacement))

    def _enter_tracing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        included = bool(self._module.is_included())
        self._module.set_included(False)
        if included and traces_real_tensors():
            self._coverage.count(TRACED)
        return included

    def _leave_tracing(self, included: bool, returned: bool) -> None:
        self._module.set_included(included)

    def _around(self, original: Callable[..., AbstractContextManager[Any]]) -> Callable[..., AbstractContextManager[Any]]:
        module = self._module

        @functools.wraps(original)
        def disable(*args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
            return _Aside(module, original(*args, **kwargs))

        return own(disable)


class _Aside(AbstractContextManager[Any]):
    """A context without modes, and without us."""

    def __init__(self, module: Any, inner: AbstractContextManager[Any]) -> None:
        self._module, self._inner = module, inner
        self._included = False

    def __enter__(self) -> Any:
        self._included = bool(self._module.is_included())
        entered = self._inner.__enter__()
        self._module.set_included(False)
        return entered

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool | None:
        self._module.set_included(self._included)
        return self._inner.__exit__(kind, error, traceback)
