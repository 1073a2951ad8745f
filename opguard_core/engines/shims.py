"""The few wrappers put around torch and threading functions, made as invisible as Python allows.

- An exception that passes through a shim carries no trace of it: re-raising with a bare ``raise`` after taking our entry off
  the traceback adds none.
- ``torch.compile`` does not trace them: a compiled region, which runs eagerly while we look, would otherwise compile us.
- ``warnings`` and ``logging`` count frames to find the caller; both skip frames whose file name looks like the import
  machinery's, so ours does.

What still shows them: ``inspect.stack()`` and the recursion depth (one frame per module call).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FunctionType, TracebackType
from typing import Any

import torch

_eval_frame = torch._C._dynamo.eval_frame

# Source: CPython Python/_warnings.c `is_internal_frame`, Lib/logging/__init__.py `_is_internal_frame`.
OWN_FILENAME = "<frozen importlib._bootstrap of opguard>"

_LEGAL = "opguard_core.marks"  # stands in the program's own code: compiled with it


def own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function's frames as ours."""
    assert isinstance(function, FunctionType)
    function.__code__ = function.__code__.replace(co_filename=OWN_FILENAME)
    _skip(function.__code__, callees=False)
    return function


def _skip(code: CodeType, *, callees: bool) -> None:
    """Have ``torch.compile`` run a code object as it is, and, if asked, everything it calls."""
    action = _eval_frame._FrameAction
    inner = action.SKIP if callees else action.DEFAULT
    _eval_frame.set_code_exec_strategy(code, _eval_frame._FrameExecStrategy(action.SKIP, inner))


def hide_from_compiler(package: str) -> None:
    """Have ``torch.compile`` leave every function of a package alone.

    Args:
        package: Prefix of module names, "opguard_core.".
    """
    for name, module in list(sys.modules.items()):
        if name.startswith(package) and name != _LEGAL:
            for value in list(vars(module).values()):
                if getattr(value, "__module__", None) == name:
                    _hide(value)
                    if isinstance(value, type):
                        for member in list(vars(value).values()):
                            _hide(member)


def _hide(value: object) -> None:
    value = getattr(value, "__wrapped__", None) or getattr(value, "__func__", None) or value
    if isinstance(value, FunctionType):
        codes = [value.__code__]
        while codes:
            code = codes.pop()
            if code.co_filename != OWN_FILENAME:
                _skip(code, callees=True)
            codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    elif isinstance(value, property):
        for accessor in (value.fget, value.fset):
            _hide(accessor)


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without our entry at its head."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == OWN_FILENAME:
        traceback = traceback.tb_next
    return traceback


def around(
    original: Callable[..., Any],
    enter: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    leave: Callable[[Any, bool], None],
) -> Callable[..., Any]:
    """A function that does what ``original`` does, between ``enter`` and ``leave``.

    Args:
        original: Called with the same arguments; its result and exceptions pass unchanged.
        enter: Gets args and kwargs, returns a token. Must not raise.
        leave: Gets the token and whether ``original`` returned. Must not raise.
    """

    @functools.wraps(original)
    def shim(*args: Any, **kwargs: Any) -> Any:
        token = enter(args, kwargs)
        returned = False
        try:
            result = original(*args, **kwargs)
            returned = True
            return result
        except BaseException as error:
            error.__traceback__ = without_own_frames(error.__traceback__)
            raise
        finally:
            leave(token, returned)

    return _inlined(shim, original)


def telling(
    original: Callable[..., Any],
    enter: Callable[[tuple[Any, ...], dict[str, Any]], Any],
    ended: Callable[[Any, Any, BaseException | None], None],
) -> Callable[..., Any]:
    """A function that does what ``original`` does and tells how it ended; no compiler is to see through it.

    Args:
        original: As of `around`.
        enter: As of `around`; the program's frame is ``sys._getframe(2)`` to it.
        ended: Gets the token, the result, and the exception or None. Must not raise.
    """

    @functools.wraps(original)
    def shim(*args: Any, **kwargs: Any) -> Any:
        token = enter(args, kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = without_own_frames(error.__traceback__)
            ended(token, None, error)
            raise
        ended(token, result, None)
        return result

    return own(shim)


def in_place_of(original: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """A function like ``original`` that does what ``call`` does: for what surrounds it in C++."""

    @functools.wraps(original)
    def shim(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = without_own_frames(error.__traceback__)
            raise

    return _inlined(shim, original)


def _inlined(shim: Any, original: Any) -> Callable[..., Any]:
    """A shim as Dynamo is to see it: where the program calls it in a region, the program's own function is traced."""
    while getattr(getattr(original, "__code__", None), "co_filename", "") == OWN_FILENAME and hasattr(original, "__wrapped__"):
        original = original.__wrapped__
    if isinstance(original, FunctionType):
        shim._torchdynamo_inline = original
    return own(shim)


class Patch:
    """One attribute of one owner replaced; undone by `undo`."""

    def __init__(self, owner: Any, name: str, replacement: Callable[[Any], Any]) -> None:
        self._owner, self._name = owner, name
        self._original = owner.__dict__[name] if isinstance(owner, type) and name in owner.__dict__ else getattr(owner, name)
        self._inherited = isinstance(owner, type) and name not in owner.__dict__
        self._ours = replacement(self._original)
        setattr(owner, name, self._ours)

    def undo(self) -> None:
        """Put the original back, unless someone else has replaced ours in the meantime."""
        if getattr(self._owner, self._name, None) is not self._ours and self._owner.__dict__.get(self._name) is not self._ours:
            return
        if self._inherited:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._original)
