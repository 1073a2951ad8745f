"""The injector. It stands at two places of the training process that capture does not look at.

Below: between capture and a kernel, after capture has looked at the inputs and before it looks at the results. Beside: in
front of capture, before it is told of a call. It reads the number of the next event and nothing else of capture's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from opguard_core.engines import operators
from opguard_core.engines.mode import BoundaryMode
from opguard_core.engines.shims import own
from tests.faults.injection import faults, memory
from tests.faults.injection.faults import Fault, Site


class Injector:
    """Counts calls, keeps the catalogue, and puts one fault in.

    Args:
        fault: What to inject; None to only look.
        last_call: Number of the last call of an uninjected run, -1 when unknown.
        on_last: Called at the end of that call with the calling frame.
        on_read: Called with every value that leaves for Python.
        at_call: Called with the number of every call; a test ends the process there.
    """

    def __init__(
        self,
        fault: Fault | None = None,
        *,
        last_call: int = -1,
        on_last: Callable[[Any], None] | None = None,
        on_read: Callable[[Any], None] | None = None,
        at_call: Callable[[int], None] | None = None,
    ) -> None:
        self.fault, self.last_call = fault, last_call
        self.on_last, self.on_read, self.at_call = on_last, on_read, at_call
        self.calls = 0
        self.sites: list[Site] = []
        self.placed: int | None = None
        self.effect = False
        self.problem = ""
        self.next_seq: Callable[[], int] = lambda: -1
        self._open: tuple[int, int] | None = None  # the call that capture is looking at, and the number of its event

    def install(self) -> None:
        """Stand where capture calls kernels and where it is called; before capture starts, for the rest of the process."""
        mode, plan = BoundaryMode, operators.OperatorPlan
        inner, made = mode.__torch_dispatch__, plan.__init__

        def beside(mode_self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self._beside(inner, mode_self, func, types, args, kwargs or {})

        def with_kernel(plan_self: Any, func: Any) -> None:
            made(plan_self, func)
            plan_self.call = _bound(self, plan_self.call, func)

        for function in (beside, type(self)._beside, type(self)._below):
            own(function)
        mode.__torch_dispatch__ = beside
        plan.__init__ = with_kernel

    # -- in front of capture -------------------------------------------------------------------------------------------

    def _beside(self, inner: Any, mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        call, self.calls = self.calls, self.calls + 1
        if self.at_call is not None:
            self.at_call(call)
        fault = self.fault
        if fault is not None and fault.call == call:
            if str(func) != fault.operator:
                self.problem = f"call {call} is {func}, not {fault.operator}"
            elif fault.kind == faults.REMOVE:
                self.placed, self.effect = self.next_seq(), True
                return self._instead(func, args, kwargs)
            elif fault.kind == faults.SILENT:
                memory.flip(faults.at(fault.where, args, kwargs, None), *fault.detail)
                self.placed, self.effect = self.next_seq(), True
            elif fault.kind == faults.SCALAR:
                args, kwargs = _replaced(fault, args, kwargs)
                self.placed, self.effect = self.next_seq(), True
        self._open = (call, self.next_seq())
        result = inner(mode, func, types, args, kwargs)
        if call == self.last_call and self.on_last is not None:
            self.on_last(sys._getframe(1))
        return result

    def _instead(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a call that is left out returns: its written argument, or its first input under another name."""
        assert self.fault is not None
        if self.fault.detail[0] == "alias":
            return torch.ops.aten.alias.default(args[0])
        if not func._schema.returns:
            return None
        return args[0] if args and not any(name.startswith("out") for name in kwargs) else next(iter(kwargs.values()))

    # -- below capture -------------------------------------------------------------------------------------------------

    def _below(self, kernel: Any, func: Any, args: Any, kwargs: Any) -> Any:
        opened, self._open = self._open, None
        if opened is None or self.next_seq() != opened[1] + 1:
            return kernel(*args, **kwargs)  # no event
        call, seq = opened
        fault = self.fault
        here = fault is not None and fault.call == call and not self.problem
        before = None
        if here and fault is not None and fault.kind == faults.SKIP:
            before = [(tensor, memory.content(tensor)) for _, tensor in faults.mutated(func, args, kwargs)]
        result = kernel(*args, **kwargs)
        if func._schema.name == "aten::_local_scalar_dense" and self.on_read is not None:
            self.on_read(result)
        if fault is None:
            self.sites.append(faults.describe(func, args, kwargs, result, call, seq))
        elif here and fault.kind in (faults.FLIP, faults.SWAP, faults.SKIP):
            self.placed = seq
            self.effect = self._damage(fault, args, kwargs, result, before)
        return result

    def _damage(self, fault: Fault, args: Any, kwargs: Any, result: Any, before: Any) -> bool:
        """Do it; whether any byte changed."""
        if before is not None:
            changed = False
            for tensor, values in before:
                changed |= memory.content(tensor) != values
                memory.restore(tensor, values)
            return changed
        tensor = faults.at(fault.where, args, kwargs, result)
        if fault.kind == faults.SWAP:
            return memory.swap(tensor, *fault.detail)
        memory.flip(tensor, *fault.detail)
        return True


def _bound(injector: Injector, kernel: Any, func: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return injector._below(kernel, func, args, kwargs)

    return own(call)


def _replaced(fault: Fault, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    head, key = fault.where.split(".")
    if head == "k":
        return args, {**kwargs, key: fault.detail[0]}
    changed = list(args)
    changed[int(key)] = fault.detail[0]
    return tuple(changed), kwargs
