"""What rewritten code meets when it runs: a flag, and behind it the choice of what a call calls.

A rewritten call is ``pick(site, f)(arguments) if observing else f(arguments)``: with no observer the flag is loaded and the program's own
call follows, from its own frame. With one, the observer decides by the callee; a callee that it leaves alone is called just as
before, so code that looks at its caller's frame, ``super()`` and error messages stay what they are.

Rewritten code finds these names in ``builtins``, where they are for all modules at once and not among any module's own names.
"""

from __future__ import annotations

import atexit
import builtins
import functools
import operator
import sys
import weakref
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, Protocol

SiteKey = str  # "DIGEST:NUMBER" of a rewritten module and of the site in it; a text, since its hash is kept


class Site(NamedTuple):
    """One rewritten expression or store.

    Attributes:
        file: Where the source was read.
        line: First line, 1-based.
        column: First column, 0-based UTF-8 bytes, as ``ast`` and ``co_positions`` count.
        end_line: Last line.
        end_column: Behind its last column.
        function: Qualified name of the function it stands in, "" at module level.
        kind: "call", "store" (``x[i] = v``) or "augment" (``x += v``).
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    function: str
    kind: str


class Observer(Protocol):
    """Who decides about calls while a capture is on, and runs those that it observes (`engines.outside`)."""

    def operator_of(self, function: Any) -> str | None:
        """Name under which calls of ``function`` are observed, as ``extension.my_ext.scale_``; None: leave this call alone.

        Asked of everything but Python's own functions, their methods and plain classes. Must not raise, call anything of the program's,
        compare or hash ``function``. Cost: on every rewritten call of such.
        """

    def call(self, site: SiteKey, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run ``function(*args, **kwargs)``, observed, and give its result or let its exception through.

        Its caller's frame (``sys._getframe(1)``) is the program's, at the call; `describe` knows more of ``site``.
        A store ``x[i] = v`` comes as ``type(x).__setitem__`` with (x, i, v), ``x += v`` as ``operator.iadd`` with (x, v) and the name
        of ``type(x).__iadd__``.
        """


# The names that rewritten code loads.
OBSERVING, PICK, OWNER, AUGMENTS, AUGMENTED = (f"__opguard_{word}__" for word in ("observing", "pick", "owner", "augments", "augmented"))

observer: Observer | None = None
compiling: Callable[[], bool] = bool  # whether a compiler traces the caller (`torch.compiler.is_compiling`): then nothing is observed here
chosen: dict[SiteKey, str] = {}  # sites whose call was observed at least once, with the name that it had last
_sites: dict[str, list[Site]] = {}
_modules: list[weakref.ref[ModuleType]] = []


def observe(new: Observer | None) -> Observer | None:
    """Set who is asked from now on, None: nobody; returns who was before."""
    global observer  # one for the process: rewritten code is shared by all threads
    before, observer = observer, new
    _tell_builtins()
    return before


def call(site: SiteKey, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What a rewritten call does, as a function.

    Cost: without an observer one check, and this frame (which rewritten code does not have).
    """
    return (function if observer is None else pick(site, function))(*args, **kwargs)


def pick(site: SiteKey, function: Any) -> Any:
    """What to call in place of ``function``: itself, unless the observer wants this callee."""
    if compiling():
        return function
    kind, watching = type(function), observer
    if watching is None or kind is FunctionType or kind is type or (kind is MethodType and type(function.__func__) is FunctionType):
        return function
    name = watching.operator_of(function)
    if name is None:
        return function
    chosen[site] = name
    return functools.partial(watching.call, site, name, function)


def owner(site: SiteKey, container: Any) -> Any:
    """What to store into in place of ``container``: itself, unless the observer wants its ``__setitem__``."""
    name = None if compiling() else _operator_of(type(container), "__setitem__")
    if name is None:
        return container
    chosen[site] = name
    return _Container(site, name, container)


def _operator_of(kind: type, method: str) -> str | None:
    """Under which name a method of a class is observed; None if it is not, as any method in Python and of plain values."""
    watching = observer
    if watching is None or kind is dict or kind is list or kind is int or kind is float or kind is str:
        return None
    try:
        own = type.__getattribute__(kind, method)  # a metaclass may answer otherwise
    except AttributeError:
        return None
    return None if type(own) is FunctionType else watching.operator_of(own)


class _Container:
    """Stands for a container between its evaluation and the store into it."""

    __slots__ = ("_container", "_name", "_site")

    def __init__(self, site: SiteKey, name: str, container: Any) -> None:
        self._site, self._name, self._container = site, name, container

    def __getitem__(self, key: Any) -> Any:
        return self._container[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if observer is None:  # stopped since
            self._container[key] = value
        else:
            observer.call(self._site, self._name, type(self._container).__setitem__, self._container, key, value)


def augments(method: str, value: Any) -> bool:
    """Whether ``value += ...`` is to be observed; ``method`` is "__iadd__" or alike."""
    return not compiling() and _operator_of(type(value), method) is not None


def augmented(site: SiteKey, method: str, value: Any, other: Any) -> Any:
    """The new value of ``value`` in ``value += other``, observed."""
    inplace = getattr(operator, method)
    watching, name = observer, _operator_of(type(value), method)
    if watching is None or name is None:
        return inplace(value, other)
    chosen[site] = name
    return watching.call(site, name, inplace, value, other)


def describe(site: SiteKey) -> Site | None:
    """Where a site is; None if its module is not known."""
    digest, _, number = site.partition(":")
    rows = _sites.get(digest)
    return rows[int(number)] if rows is not None and int(number) < len(rows) else None


def know(digest: str, rows: list[Site]) -> None:
    """Keep the sites of a module that is about to run."""
    _sites[digest] = rows
    if not hasattr(builtins, OBSERVING):
        _tell_builtins()
        atexit.register(_outlive_builtins)  # early, so among the last to be called


def runs_in(module: ModuleType) -> None:
    """Keep in mind, not alive, a module that runs rewritten code."""
    _modules.append(weakref.ref(module))


def _outlive_builtins() -> None:
    """The process ends: the interpreter gives ``builtins`` its first contents back, and finalizers of the program run after that."""
    observe(None)
    modules = [reference() for reference in _modules]
    for module in [*modules, sys.modules.get("__main__"), sys.modules.get("__mp_main__")]:
        if module is not None:
            for name in (OBSERVING, PICK, OWNER):
                module.__dict__.setdefault(name, getattr(builtins, name))


def _tell_builtins() -> None:
    on = observer is not None
    # ``{}.get(site, f)`` is f: a function in C that gives its second argument.
    for name, value in {
        OBSERVING: on,
        PICK: pick if on else {}.get,
        OWNER: owner if on else {}.get,
        AUGMENTS: augments,
        AUGMENTED: augmented,
    }.items():
        setattr(builtins, name, value)
