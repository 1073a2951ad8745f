"""The mode of one thread: where an operator call meets the dispatch engine, before and after its kernel.

A `TorchDispatchMode` at the bottom of the thread's mode stack sees each operator below autograd: forward, recompute, backward,
optimizer and collectives, with the very tensors the kernels get. It cannot see what never reaches the dispatcher (`.tolist()`,
`.numpy()`, saves: observed at the call), nor inside a compiled region, which torch runs eagerly under a mode.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opguard_core.engines.higher_order import run as run_higher_order
from opguard_core.engines.lanes import Lane
from opguard_core.engines.modes_off import TRACED, traces_real_tensors
from opguard_core.engines.operators import call_with_tensors
from opguard_core.engines.shims import own, without_own_frames

if TYPE_CHECKING:
    from opguard_core.engines.dispatch import DispatchEngine

_push, _pop = torch._C._push_on_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack
_num_modes = torch._C._len_torch_dispatch_stack
_set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
_mode_of, _PROXY = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.PROXY
_NoTorchFunction = torch._C.DisableTorchFunction


class BoundaryMode(TorchDispatchMode):
    """The mode of one thread. Pushed on the C++ stack directly: torch's process-wide "in a mode" flags stay as they are."""

    # Otherwise torch refuses flex_attention, cond and their like while we look.
    supports_higher_order_operators = True

    def __init__(self, engine: DispatchEngine, lane: Lane) -> None:
        super().__init__()
        self.engine, self.lane = engine, lane
        lane.mode = self

    def push(self) -> None:
        """Observe the calling thread from now on."""
        _push(self)

    def push_below(self) -> None:
        """As `push`, below the modes that the program has pushed meanwhile."""
        above = [_pop(None) for _ in range(_num_modes())]
        self.push()
        for other in reversed(above):
            _push(other)

    def pop(self) -> None:
        """Stop, if no other mode has been pushed since."""
        if self.on_top():
            _pop(None)

    def on_top(self) -> bool:
        """Whether this mode is the one the next operator meets first."""
        depth = _num_modes()
        return depth > 0 and torch._C._get_dispatch_stack_at(depth - 1) is self


def _dispatch(self: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
    engine, lane = self.engine, self.lane
    kwargs = kwargs or {}
    call = None
    # A compiled region runs eagerly while we look, but its compiler still wants every Python frame, ours included.
    compiler = _set_eval_frame(None)
    try:
        if _num_modes():
            return _pass_on(engine, func, args, kwargs)
        if types and engine.delegates(types):
            return NotImplemented
        plan = engine.plan_of(func)
        if plan is None:
            return run_higher_order(self, engine.context.coverage, func, args, kwargs)
        if plan.composite and not plan.is_whole(args, kwargs):
            # Inference mode lets composites through whole; the operators inside are the boundaries.
            _push(self)
            try:
                return plan.open(*args, **kwargs)
            finally:
                _pop(None)
        # Our own calls and attribute reads must not reach function modes or `__torch_function__` of the program.
        with _NoTorchFunction():
            if not lane.muted:
                # None on a thread of autograd's own, where no Python runs but ours.
                call = engine.before(lane, plan, args, kwargs, sys._getframe().f_back)
            if plan.native:
                try:
                    result = plan.call(*args, **kwargs)
                except RuntimeError:
                    result = call_with_tensors(func, args, kwargs)
                if call is not None:
                    engine.after(lane, call, args, kwargs, result)
                return result
        # Its kernel may be the program's own Python, which keeps its function modes.
        result = plan.call(*args, **kwargs)
        if call is not None:
            with _NoTorchFunction():
                engine.after(lane, call, args, kwargs, result)
        return result
    except BaseException as error:
        error.__traceback__ = without_own_frames(error.__traceback__)
        if call is not None:
            with _NoTorchFunction():
                engine.raised(lane, call, args, kwargs, error)
        raise
    finally:
        if compiler is not None:
            _set_eval_frame(compiler)


@own
def _pass_on(engine: DispatchEngine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """We stand above all but torch's own tracing modes (fake, proxy, functional): nothing is told of what they compute."""
    if _mode_of(_PROXY) is not None and traces_real_tensors():
        engine.context.coverage.count(TRACED)
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        return call_with_tensors(func, args, kwargs)


# torch wraps a class's own __torch_dispatch__ in two more Python frames; set afterwards, it is called as it is.
BoundaryMode.__torch_dispatch__ = own(_dispatch)
