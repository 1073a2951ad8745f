"""Higher-order operators (flex_attention, cond, while_loop): their insides are the boundaries.

torch hands them to a mode as a whole. Their dense implementation is Python that calls ordinary operators, so we run it with
our mode back in place. Some implementations refuse to run under a mode; there only the functions they are given are observed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from opguard_core.engines.coverage import Coverage
from opguard_core.engines.shims import own, without_own_frames

_push, _pop = torch._C._push_on_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack
_DENSE = torch._C.DispatchKey.CompositeExplicitAutograd
_REFUSAL = "_get_current_dispatch_mode"  # an implementation that asks for the mode does so to refuse it


def run(mode: Any, coverage: Coverage, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a higher-order operator; called with ``mode`` taken off the stack."""
    kernel = func.py_kernels.get(_DENSE)
    code = getattr(kernel, "__code__", None)
    if code is None:
        coverage.gap("higher-order-operator", str(func), touches_state=True)
        return func(*args, **kwargs)
    if _REFUSAL in code.co_names:
        return kernel(*[_observed(mode, value) for value in args], **{name: _observed(mode, value) for name, value in kwargs.items()})
    _push(mode)
    try:
        return kernel(*args, **kwargs)
    finally:
        _pop(None)


def _observed(mode: Any, value: Any) -> Any:
    """A function the operator will call, with our mode in place meanwhile; other values as they are."""
    if not callable(value) or isinstance(value, torch.Tensor | type):
        return value
    return own(_with_mode(mode, value))


def _with_mode(mode: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _push(mode)
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = without_own_frames(error.__traceback__)
            raise
        finally:
            _pop(None)

    return call
