"""Names that a program gives to its own calls and values, so that two code bases with other insides can be compared at them.

    @opguard_core.boundary("attention")             every call: what it gets, what it returns, and the gradients of both
    def attention(x, mask): ...

    with opguard_core.boundary("loss", logits, labels) as loss:      the same of a block: what it reads, what it gives
        value = loss.returns(cross_entropy(logits, labels))

    hidden = opguard_core.probe("hidden", hidden)   one value, and its gradient

Standard library only. While no capture is on a decorated function is the function itself, and the others look at one global. Nothing is
ever changed: what is named passes through as it is. Legal under ``torch.compile(fullgraph=True)``: a call that is compiled while a
capture is on leaves an operator with an effect in the graph (``engines/semantic_op.py``), so go on with what `probe` returns if its
gradient is to be seen there.

Not seen: what a generator yields (name it with `probe`), and tensors inside objects that are no list, tuple or dict.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Value = TypeVar("_Value")

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-\[\]/#]{0,119}")
"""What a name looks like: an identifier with dots, dashes, brackets and slashes; it stands in answers as it is."""

ANNOUNCED = "OPGUARD_RUN"
"""In the environment of every process of an observed program, from its first instruction on."""

_MOST_KNOWN = 1 << 14
_known: set[str] = set()  # names that were looked at


class Observer(Protocol):
    """What a capture puts in place; nothing here raises, and nothing changes what it is given."""

    def enter(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A named call begins; returns what `leave` is to get."""

    def leave(self, token: Any, result: Any) -> None:
        """It has returned."""

    def raised(self, token: Any, error: BaseException) -> None:
        """It has raised."""

    def probe(self, name: str, value: Any) -> None:
        """A value is named."""


class Compiled(Protocol):
    """What stands in for an `Observer` inside a graph that is being compiled."""

    def enter(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """As of `Observer`; returns the arguments to go on with."""

    def leave(self, name: str, result: Any) -> Any:
        """As of `Observer`; returns the result to go on with."""

    def probe(self, name: str, value: Any) -> Any:
        """As of `Observer`; returns the value to go on with."""


def _never() -> bool:
    return False


_observer: Observer | None = None
_compiled: Any = None
_compiling: Callable[[], bool] = _never


def observe(observer: Observer | None, compiled: Any = None, compiling: Callable[[], bool] = _never) -> None:
    """Tell an observer of named calls and values from now on; None: nobody.

    Args:
        observer: A capture's.
        compiled: Stands in for it where ``compiling()``: see `Compiled`.
        compiling: Whether the caller is being compiled.
    """
    global _observer, _compiled, _compiling
    _observer, _compiled, _compiling = observer, compiled, compiling


def probe(name: str, value: _Value) -> _Value:
    """Name a value: a tensor, or a list, tuple or dict of tensors.

    Args:
        name: See `NAME`; the same in both programs.
        value: Read, never changed, never kept.

    Returns:
        ``value``.

    Cost: a call and one look at a global while no capture is on, some 0.1 us.
    """
    if _observer is None:
        return value
    if _compiling():
        return _compiled.probe(name, value)  # type: ignore[no-any-return]
    _observer.probe(name, value)
    return value


class boundary:  # noqa: N801  a function to its users, like `contextlib.suppress`
    """Name a call: as a decorator of a function or method, or as a context manager around a block.

    Args:
        name: See `NAME`; the same in both programs. Calls of one name are told apart by step, microbatch, phase and order.
        *args: Of a context manager: what the block reads.
        **kwargs: Likewise.

    Raises:
        ValueError: ``name`` is none.
        TypeError: What is decorated is no function, or an asynchronous generator.

    Cost: nothing for a function that is decorated while no capture is on or announced: it stays itself. A block: about 1 us.
    """

    __slots__ = ("_args", "_kwargs", "_open", "name")

    def __init__(self, name: str, /, *args: Any, **kwargs: Any) -> None:
        if name not in _known:
            _look(name)
        self.name, self._args, self._kwargs = name, args, kwargs
        self._open: Any = None  # (observer, its token) while the block runs and has not said what it gives

    def __call__(self, function: _Function) -> _Function:
        """Name every call of a function."""
        if inspect.isasyncgenfunction(function) or not callable(function) or isinstance(function, type):
            raise TypeError(f"{function!r} cannot be a boundary: decorate a function or method that returns.")
        if self._args or self._kwargs:
            raise TypeError("A boundary that decorates has a name and nothing else: what the call gets is seen by itself.")
        if _observer is None and ANNOUNCED not in os.environ:
            return function
        return named(self.name, function)  # type: ignore[return-value]

    def __enter__(self) -> boundary:
        """The block begins."""
        observer = _observer
        if observer is not None:
            if _compiling():
                _compiled.enter(self.name, self._args, self._kwargs)
            else:
                self._open = observer, observer.enter(self.name, self._args, self._kwargs)
        self._args, self._kwargs = (), {}  # a tensor lives no longer for being named
        return self

    def returns(self, value: _Value) -> _Value:
        """Name what the block gives; at most once."""
        if _observer is not None and _compiling():
            return _compiled.leave(self.name, value)  # type: ignore[no-any-return]
        if self._open is not None:
            (observer, token), self._open = self._open, None
            observer.leave(token, value)
        return value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        """The block is over."""
        if self._open is None:
            return
        (observer, token), self._open = self._open, None
        if error is None:
            observer.leave(token, ())
        else:
            observer.raised(token, error)


def _look(name: object) -> None:
    """Refuse what is no name; remember one that is."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} names no boundary: use letters, digits and . _ - [ ] / #, at most 120 characters.")
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known.add(name)


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does what ``function`` does, its calls named."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_later(*args: Any, **kwargs: Any) -> Any:
            with boundary(name, *args, **kwargs) as call:
                return call.returns(await function(*args, **kwargs))

        return call_later
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def iterate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with boundary(name, *args, **kwargs) as call:
                return call.returns((yield from function(*args, **kwargs)))

        return iterate

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        observer = _observer
        if observer is None:
            return function(*args, **kwargs)
        if _compiling():
            args, kwargs = _compiled.enter(name, args, kwargs)
            return _compiled.leave(name, function(*args, **kwargs))
        token = observer.enter(name, args, kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            observer.raised(token, error)
            raise
        observer.leave(token, result)
        return result

    return call
