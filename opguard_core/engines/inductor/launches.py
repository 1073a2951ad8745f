"""What stands in a generated module in place of what it calls: each kernel, observed at its launch, and memory handed out unwritten.

The module's text, its graph and everything that a cache keeps of it stay as they are; only names in the module's namespace are bound to
these, as long as a capture runs. Calls of library kernels (``extern_kernels``, ``torch.ops``) reach the dispatcher and are seen there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from opguard_core.engines.canonical import argument_text
from opguard_core.engines.guard import Guard
from opguard_core.engines.inductor.generated import TRITON, Generated, Kernel, Parameter
from opguard_core.engines.outside import OutsideCalls

if TYPE_CHECKING:
    from opguard_core.engines.inductor.native_launches import NativeLaunches

PREFIX = "inductor."
_Tensor = torch.Tensor


class Launches:
    """Observes the launches of one generated module.

    Args:
        outside: Where they become events.
        generated: What the module's text says.
        guard: Counts what goes wrong with us.
        native: What observes launches in C++, as far as they are of the common kind; None: Python observes them all.
    """

    def __init__(self, outside: OutsideCalls, generated: Generated, guard: Guard, native: NativeLaunches | None = None) -> None:
        self._outside, self._generated, self._guard, self._native = outside, generated, guard, native
        self._orders: dict[tuple[str, int, int], _Order] = {}
        self._in_cpp: list[Any] = []
        self._num_seen = self._num_python = 0

    @property
    def num_seen(self) -> int:
        """Launches that were observed."""
        return self._num_seen + sum(one.num_seen for one in self._in_cpp)

    @property
    def num_python(self) -> int:
        """Launches that C++ has left to Python."""
        return self._num_python + sum(one.num_python for one in self._in_cpp)

    def let_go(self) -> None:
        """The module is unbound: hold none of its kernels any more."""
        self._num_seen, self._num_python = self.num_seen, self.num_python
        self._in_cpp.clear()

    def around(self, kernel: Kernel, value: Any) -> Any:
        """What stands in the module for a kernel."""
        launch = (TritonLaunch if kernel.kind == TRITON else CppLaunch)(self, kernel, value)
        if self._native is None:
            return launch
        in_cpp = self._native.around(kernel, value, launch, partial(self.order, kernel))
        if in_cpp is None:
            return launch
        self._in_cpp.append(in_cpp)
        if isinstance(launch, CppLaunch):
            return in_cpp
        launch.run = in_cpp  # type: ignore[method-assign]
        return launch

    def allocation(self, allocate: Callable[..., Any], made: Callable[[torch.Tensor], None]) -> Any:
        """What stands in the module for what hands memory out."""
        return Allocation(allocate, made) if self._native is None else self._native.allocation(allocate, made)

    def is_around(self, value: object) -> bool:
        """Whether this stands for something of the module already."""
        return isinstance(value, CppLaunch | TritonLaunch | Allocation) or (self._native is not None and self._native.is_ours(value))

    def launch(self, kernel: Kernel, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
        """Do what the module asked for, observed.

        Cost: that of `OutsideCalls.before` and `after`.
        """
        outside = self._outside
        if not outside.watches():
            return call(*args, **kwargs)
        try:
            order = self._order(kernel, args, frame.f_lineno)
            reads = [(path, args[index]) for path, index in order.reads]
            text = ";".join([argument_text(name, args[index]) for name, index in order.others])
        except Exception as error:  # noqa: BLE001  the step guard
            self._guard.caught(f"launch of {kernel.name}", error)
            return call(*args, **kwargs)
        self._num_seen += 1
        opened = outside.before(PREFIX + kernel.name, reads, text, frame, stated=order.changed is not None)
        # Some launchers ask a tensor for its address in Python, which would pass for the program's own wish to write there; a first
        # launch may try several variants, with operators of torch around them, as often as time allows.
        outside.know_addresses(1)
        lane = outside.mute() if kernel.kind == TRITON else None
        try:
            returned = call(*args, **kwargs)
        except BaseException as error:
            outside.unmute(lane)
            outside.know_addresses(-1)
            outside.raised(opened, error)
            _leave_out_this_frame(error)
            raise
        outside.unmute(lane)
        outside.know_addresses(-1)
        if opened is not None:
            results = [(path, args[index]) for path, index in order.results]
            changed = None if order.changed is None else [(path, args[index]) for path, index in order.changed]
            outside.after(opened, results, changed)
        return returned

    def region(self, name: str, call: Callable[..., Any], args: Any, frame: FrameType) -> Any:
        """As `launch`, of a whole region."""
        outside = self._outside
        if not outside.watches():
            return call(args)
        tensors = [(f"in.{index}", value) for index, value in enumerate(args) if isinstance(value, _Tensor)]
        self._num_seen += 1
        opened = outside.before(PREFIX + name, tensors, "", frame)
        try:
            returned = call(args)
        except BaseException as error:
            outside.raised(opened, error)
            raise
        outside.after(opened, [(f"out.{index}", value) for index, value in enumerate(returned) if isinstance(value, _Tensor)])
        return returned

    def order(self, kernel: Kernel, args: tuple[Any, ...]) -> tuple[list[tuple[str, int]], ...]:
        """What the launch of the calling frame does, for C++: (path, position) of what is read, made and changed, and of what is no tensor.

        What is changed is None where the module's text does not tell.
        """
        order = self._order(kernel, args, sys._getframe(1).f_lineno)
        return order.reads, order.results, order.changed, order.others  # type: ignore[return-value]

    def _order(self, kernel: Kernel, args: tuple[Any, ...], line: int) -> _Order:
        """What a launch does with its arguments; which of them are tensors is the same each time."""
        key = kernel.name, line, len(args)
        known = self._orders.get(key)
        if known is None:
            site = self._generated.launches.get(line)
            whole = frozenset() if site is None or site.kernel != kernel.name else site.whole
            known = self._orders[key] = _Order(kernel.parameters, args, whole)
        return known


class _Order:
    """Which arguments of a launch are read, made and changed (None: its text does not tell), and which are no tensors."""

    __slots__ = ("changed", "others", "reads", "results")

    def __init__(self, parameters: tuple[Parameter, ...], args: tuple[Any, ...], whole: frozenset[int]) -> None:
        self.reads: list[tuple[str, int]] = []
        self.results: list[tuple[str, int]] = []
        self.changed: list[tuple[str, int]] | None = []
        self.others: list[tuple[str, int]] = []
        for index, value in enumerate(args):
            parameter = parameters[index] if index < len(parameters) else _UNKNOWN
            if not isinstance(value, _Tensor):
                self.others.append((parameter.name or str(index), index))
            elif parameter.is_scratch:
                continue
            elif parameter.is_written and not parameter.is_read and index in whole:
                self.results.append((f"out.{index}", index))
            else:
                self.reads.append((f"in.{index}", index))
                if parameter.is_written is None:
                    self.changed = None
                elif parameter.is_written and self.changed is not None:
                    self.changed.append((f"mut.{index}", index))


_UNKNOWN = Parameter("", None, None)


def _leave_out_this_frame(error: BaseException) -> None:
    """Take the frame that has caught an error out of its traceback; a bare ``raise`` does not add it again."""
    error.__traceback__ = None if error.__traceback__ is None else error.__traceback__.tb_next


class CppLaunch:
    """A kernel that is called as it is."""

    __slots__ = ("_function", "_kernel", "_launches")

    def __init__(self, launches: Launches, kernel: Kernel, function: Callable[..., Any]) -> None:
        self._launches, self._kernel, self._function = launches, kernel, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The launch."""
        try:
            return self._launches.launch(self._kernel, self._function, args, kwargs, sys._getframe(1))
        except BaseException as error:
            _leave_out_this_frame(error)
            raise


class TritonLaunch:
    """A kernel that is launched by its ``run``; for everything else it is what it was."""

    def __init__(self, launches: Launches, kernel: Kernel, tuner: Any) -> None:
        self._launches, self._kernel, self._tuner = launches, kernel, tuner

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The launch. ``stream`` and the like say where, not what."""
        try:
            return self._launches.launch(self._kernel, self._tuner.run, args, kwargs, sys._getframe(1))
        except BaseException as error:
            _leave_out_this_frame(error)
            raise

    def __getattr__(self, name: str) -> Any:
        """Whatever else the module or torch asks of it."""
        return getattr(self._tuner, name)


class Allocation:
    """Hands out memory as ``empty_strided_cpu`` and its like do, and says that nothing was written there yet."""

    __slots__ = ("_allocate", "_made")

    def __init__(self, allocate: Callable[..., Any], made: Callable[[torch.Tensor], None]) -> None:
        self._allocate, self._made = allocate, made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The allocation."""
        tensor = self._allocate(*args, **kwargs)
        self._made(tensor)
        return tensor


class RegionCall:
    """A region that is one C++ function: what it gets and what it returns is all that can be seen of it."""

    __slots__ = ("_call", "_launches", "_name")

    def __init__(self, launches: Launches, call: Callable[..., Any], name: str) -> None:
        self._launches, self._call, self._name = launches, call, name

    def __call__(self, args: Any) -> Any:
        """The call; ``args`` is a list that it empties."""
        return self._launches.region(self._name, self._call, args, sys._getframe(1))
