"""Functions of extensions that take tensors: what they are called, which tensors a call of one gets and gives back.

An extension function is native code that Python calls directly (pybind11, a CPython extension, Cython, ctypes, cffi, CuPy), not torch's.
What the program calls through torch's dispatcher (``torch.ops``, ``TORCH_LIBRARY``, ``custom_op``) is observed there.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import PurePath
from types import BuiltinFunctionType, MethodDescriptorType, MethodType, ModuleType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

import torch

from opguard_core.engines.canonical import argument_text
from opguard_core.engines.quiet import quiet
from opguard_core.engines.shims import own, without_own_frames
from opguard_core.instrument.known import known_package

if TYPE_CHECKING:
    from opguard_core.engines.addresses import Addresses
    from opguard_core.engines.outside import OutsideCalls

MOST_TENSORS = 10_000  # of one call
MOST_ITEMS = 64  # of a container whose text is written out
_EXTENSION, _CUPY = "extension.", "cupy."
_PYBIND_TYPE = "pybind11_type"
_CUPY_KERNELS = frozenset({"RawKernel", "ElementwiseKernel", "ReductionKernel", "ufunc", "Fusion"})
OBSERVED = "_opguard_observed"  # in a type whose objects observe their own calls
_FuncPtr = ctypes._CFuncPtr  # type: ignore[attr-defined]
_NO_WORD = re.compile(r"[^A-Za-z0-9_.]+")
_LOWEST_ADDRESS, _HIGHEST_ADDRESS = 1 << 40, 1 << 48  # of user memory, on 64-bit machines


def operator_of(function: Any) -> str:
    """Name of a native function as events have it, "extension.<module>.<function>" or "cupy.<kernel>"; "" for any other callable.

    "" as well for what is torch's, or of an object of the interpreter's own. Never raises, calls nothing of the program's.
    Cost: 0.5 us.
    """
    kind = type(function)
    if kind is BuiltinFunctionType:
        return _builtin(function)
    if kind is MethodType:  # of a class that pybind11 made
        inner = function.__func__
        return (
            _named(inner.__module__, f"{type(function.__self__).__name__}.{inner.__name__}") if type(inner) is BuiltinFunctionType else ""
        )
    if kind is WrapperDescriptorType or kind is MethodDescriptorType:
        return _named(function.__objclass__.__module__, function.__qualname__)
    if issubclass(kind, _FuncPtr):
        return _of_ctypes(function)
    module = kind.__module__
    if type(module) is not str:
        return ""
    root = module.partition(".")[0]
    if root == "cupy":
        return _CUPY + _word(getattr(function, "name", kind.__name__)) if _is_cupy_kernel(kind) else ""
    if kind.__name__ == _PYBIND_TYPE:  # a class of an extension is called: its constructor
        return _named(function.__module__, function.__name__)
    if type(kind).__name__ == _PYBIND_TYPE:  # an object of one
        return _named(module, f"{kind.__name__}.__call__") if any("__call__" in base.__dict__ for base in kind.__mro__) else ""
    if kind.__name__ == "cython_function_or_method":
        return _named(function.__module__, function.__qualname__)
    if root == "numba" and kind.__name__.endswith("Dispatcher"):
        python = getattr(function, "py_func", None)
        return _named(getattr(python, "__module__", ""), getattr(python, "__qualname__", ""))
    return f"{_EXTENSION}cffi.call" if root == "_cffi_backend" else ""


def _builtin(function: Any) -> str:
    module, bound = function.__module__, function.__self__
    if type(module) is str:  # what pybind11 binds it to is an object of its own, and no part of the name
        return _named(module, function.__name__)
    if bound is None or isinstance(bound, ModuleType):
        return _named(None if bound is None else bound.__name__, function.__name__)
    return _named(type(bound).__module__, function.__qualname__)


def _named(module: Any, name: Any) -> str:
    if type(module) is not str or type(name) is not str or module in ("", "builtins"):
        return ""
    root = module.partition(".")[0]
    return "" if root == "torch" or root.startswith("opguard_") else f"{_EXTENSION}{_word(module)}.{_word(name)}"


def _word(name: Any) -> str:
    return _NO_WORD.sub("_", name) if type(name) is str and name else "unnamed"


def _of_ctypes(function: Any) -> str:
    if function is ctypes.memmove or function is ctypes.memset:
        return f"{_EXTENSION}ctypes.{'memmove' if function is ctypes.memmove else 'memset'}"
    held = function._objects
    library = held.get("0") if isinstance(held, dict) else None
    name = getattr(library, "_name", None) if isinstance(library, ctypes.CDLL) else None
    stem = PurePath(name).name.partition(".")[0] if type(name) is str and name else "ctypes"
    return f"{_EXTENSION}{_word(stem)}.{_word(getattr(function, '__name__', None))}"


def _is_cupy_kernel(kind: type) -> bool:
    return any(base.__name__ in _CUPY_KERNELS and base.__module__.partition(".")[0] == "cupy" for base in kind.__mro__)


def wanted_by(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Which native functions a run's orders name.

    Args:
        patterns: Of callees, as "my_ext.*" or "cupy.*"; "auto": all but those of known packages (`instrument.known`), and CuPy's kernels.
    """
    auto = "auto" in patterns
    named = tuple(pattern for pattern in patterns if pattern != "auto")

    def wanted(operator: str) -> bool:
        name = operator.removeprefix(_EXTENSION)
        if any(fnmatchcase(name, pattern) for pattern in named):
            return True
        return auto and (operator.startswith(_CUPY) or not known_package(name))

    return wanted


def tensors_in(args: tuple[Any, ...], kwargs: Mapping[str, Any], addresses: Addresses | None = None) -> list[tuple[str, torch.Tensor]]:
    """Every tensor that a call gets, with its slot path ("in.0", "in.2.1", "in.1.key", "kw.mask").

    Looks into lists, tuples and dicts; numpy and CuPy arrays, ctypes pointers and plain addresses count as the tensors they are views of,
    if they are of any that the program has shown (``Tensor.numpy``, ``data_ptr``, DLPack).

    Args:
        args: Positional arguments.
        kwargs: Others.
        addresses: What the program has shown; None: only tensors count.
    """
    found: list[tuple[str, torch.Tensor]] = []
    for index, value in enumerate(args):
        _gather(f"in.{index}", value, addresses, found)
    for name, value in kwargs.items():
        _gather(f"kw.{name}", value, addresses, found)
    return found


def _gather(path: str, value: Any, addresses: Addresses | None, found: list[tuple[str, torch.Tensor]]) -> None:
    if len(found) >= MOST_TENSORS:
        return
    if isinstance(value, torch.Tensor):
        found.append((path, value))
        return
    kind = type(value)
    if kind is list or kind is tuple:
        for index, item in enumerate(value):
            _gather(f"{path}.{index}", item, addresses, found)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is str or type(key) is int:
                _gather(f"{path}.{key}", item, addresses, found)
    elif isinstance(value, tuple):  # a named one
        for index, item in enumerate(tuple.__iter__(value)):
            _gather(f"{path}.{index}", item, addresses, found)
    elif addresses is not None and kind not in _PLAIN:
        tensor = addresses.tensor_of(value)
        if tensor is not None:
            found.append((path, tensor))


_PLAIN = frozenset({float, bool, str, bytes, type(None), complex, torch.dtype, torch.device, torch.Size})


def results_of(result: Any) -> list[tuple[str, torch.Tensor]]:
    """Every tensor that a call returned, with its slot path ("out.0", "out.1.2")."""
    found: list[tuple[str, torch.Tensor]] = []
    many = result if type(result) is tuple else (result,)
    for index, value in enumerate(many):
        _gather(f"out.{index}", value, None, found)
    return found


def arguments_text(args: tuple[Any, ...], kwargs: Mapping[str, Any], addresses: Addresses | None = None) -> str:
    """Canonical text of arguments that are no tensors, "0=4;eps=0x1p-3"; what is, or looks like, an address of memory is not written out.

    Args:
        args: Positional arguments.
        kwargs: Others.
        addresses: What the program has shown.
    """
    return ";".join(_texts(args, kwargs, addresses))


def _texts(args: tuple[Any, ...], kwargs: Mapping[str, Any], addresses: Addresses | None) -> Iterator[str]:
    for name, value in [*((str(index), value) for index, value in enumerate(args)), *kwargs.items()]:
        if isinstance(value, torch.Tensor):
            continue
        if type(value) is int and _is_address(value, addresses):
            yield f"{name}=address"
        elif type(value) in (list, tuple, dict) and len(value) > MOST_ITEMS:
            yield f"{name}={type(value).__name__}[{len(value)}]"
        else:
            yield argument_text(name, _without_addresses(value, addresses))


def _is_address(value: int, addresses: Addresses | None) -> bool:
    return _LOWEST_ADDRESS <= value < _HIGHEST_ADDRESS or (addresses is not None and addresses.was_shown(value))


def _without_addresses(value: Any, addresses: Addresses | None) -> Any:
    if type(value) is int:
        return "address" if _is_address(value, addresses) else value
    return [_without_addresses(item, addresses) for item in value] if type(value) in (list, tuple) else value


class ExtensionCalls:
    """Observes calls of native functions where the program makes them; what `instrument.runtime.observer` is while a capture is on.

    Args:
        outside: Where events are made.
        wanted: Whether a native function, by its operator name, is one to observe; by default all are.
        addresses: Memory that the program has shown.
    """

    def __init__(self, outside: OutsideCalls, wanted: Callable[[str], bool] | None = None, addresses: Addresses | None = None) -> None:
        self._outside, self._addresses = outside, addresses
        self._wanted = wanted
        self._names: dict[str, str | None] = {}
        self._seen: set[str] = set()

    def operator_of(self, function: Any) -> str | None:
        """Name under which a call of ``function`` is observed, None: leave it alone. Cost: 0.7 us."""
        name = operator_of(function)
        if not name or getattr(type(function), OBSERVED, False):
            return None  # no native function, or one that observes its own calls
        try:
            return self._names[name]
        except KeyError:
            found = name if self._wanted is None or self._wanted(name) else None
            return self._names.setdefault(name, found)

    def call(self, site: Any, name: str, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run ``function(*args, **kwargs)``, observed; its result and its exceptions pass unchanged.

        Args:
            site: Of the callsite engine; not looked at.
            name: What `operator_of` gave.
            function: What the program calls.
            args: Positional arguments.
            kwargs: Others.
        """
        del site
        frame = sys._getframe(1)
        outside = self._outside
        call = None
        if outside.watches():
            try:
                if name not in self._seen:
                    self._seen.add(name)
                    outside.binaries.see(name, function)
                with quiet():
                    tensors = tensors_in(args, kwargs, self._addresses)
                call = outside.before(name, tensors, arguments_text(args, kwargs, self._addresses), frame)
            except Exception as error:  # noqa: BLE001  the step guard
                outside.context.guard.caught(f"arguments of {name}", error)
        del frame
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            error.__traceback__ = without_own_frames(error.__traceback__)
            outside.raised(call, error)
            raise
        if call is not None:
            outside.after(call, results_of(result), tells=_tells(function, result))
        return result


def _tells(function: Any, result: Any) -> bool:
    """Whether a result is a number that came of the arguments; what ctypes takes for an int may be anything."""
    kind = type(result)
    if kind is list or kind is tuple:
        return any(_tells(function, item) for item in result[:MOST_ITEMS])
    return kind is float or kind is complex or (kind in (int, bool) and not issubclass(type(function), _FuncPtr))


# Its frame is none of the program's: it stands in no traceback.
own(ExtensionCalls.call)
