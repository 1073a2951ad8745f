"""Named calls and values inside a graph that is being compiled: an operator with an effect, which the compiler must keep, in order.

Stands in for ``semantic.Semantic`` where ``torch.compiler.is_compiling()``. The operator gets the tensor and gives nothing, so no value
depends on it, but the value it gets has to exist: a fusion may end there. Its effect is declared to the graph passes, else it would be
removed. In a backward graph it is placed by a custom function whose forward and backward are identities; that one only takes part if the
program goes on with what it returns.

Cannot see: calls of which a tensor is neither an argument nor a result (or in a list, tuple or dict of these).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

OPERATOR = "opguard::boundary"
_told: list[Callable[[str, str, str, torch.Tensor], None]] = []  # whoever is told what a compiled graph passes; the last one


@torch.library.custom_op(OPERATOR, mutates_args=())
def _boundary(x: torch.Tensor, name: str, at: str, slot: str) -> None:
    if _told:
        _told[-1](name, at, slot, x)


@_boundary.register_fake
def _(x: torch.Tensor, name: str, at: str, slot: str) -> None:
    return None


def _declare() -> None:
    """Nothing reads what it gives, and it must stay all the same. Source: measured, fullgraph, forward and backward, both backends."""
    torch.fx.node.has_side_effect(torch.ops.opguard.boundary.default)


_declare()


class _Passing(torch.autograd.Function):
    """A tensor as it is; tells of it, and of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str, at: str, slot: str) -> torch.Tensor:
        """Tell of a value."""
        ctx.told = name, slot
        torch.ops.opguard.boundary(x, name, at, slot)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Tell of its gradient."""
        name, slot = ctx.told
        torch.ops.opguard.boundary(gradient, name, "grad", f"grad_{slot}")
        return gradient, None, None, None


def _pass(value: Any, name: str, at: str, slot: str) -> Any:
    """Every tensor of plain containers, told of; a container that holds one is made anew."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad and torch.is_grad_enabled():
            return _Passing.apply(value, name, at, slot)
        torch.ops.opguard.boundary(value, name, at, slot)
        return value
    if type(value) is tuple:
        return tuple([_pass(item, name, at, f"{slot}.{index}") for index, item in enumerate(value)])
    if type(value) is list:
        return [_pass(item, name, at, f"{slot}.{index}") for index, item in enumerate(value)]
    if type(value) is dict:
        return {key: _pass(item, name, at, f"{slot}.{key}") for key, item in value.items()}
    return value


class InGraph:
    """As ``marks.Compiled``; traced with the program, so it is plain."""

    @staticmethod
    def enter(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A named call begins."""
        return _pass(args, name, "enter", "in"), _pass(kwargs, name, "enter", "kw")

    @staticmethod
    def leave(name: str, result: Any) -> Any:
        """It returns."""
        if isinstance(result, torch.Tensor):
            return _pass(result, name, "exit", "out.0")
        return _pass(result, name, "exit", "out")

    @staticmethod
    def probe(name: str, value: Any) -> Any:
        """A value is named."""
        if isinstance(value, torch.Tensor):
            return _pass(value, name, "probe", "in.0")
        return _pass(value, name, "probe", "in")


def tell(told: Callable[[str, str, str, torch.Tensor], None] | None) -> None:
    """Who is told from now on, as (name, at, slot, tensor); None: nobody."""
    _told[:] = [] if told is None else [told]
