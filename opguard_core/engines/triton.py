"""Triton kernels: each launch from Python as a boundary event, with what the kernel writes from its own TTIR.

    kernel[grid](...) -> run of `Autotuner`, `Heuristics`, `JITFunction` (or the interpreter's) -> `OutsideCalls`

The outermost of them is the boundary, and what torch does inside the trials of autotuning is none. What Inductor generates does not come
by here: its launchers are `engines.compiled`'s. A kernel that an operator of torch's dispatcher launches belongs to that operator.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from opguard_core.engines.canonical import argument_text
from opguard_core.engines.imports import WhenImported
from opguard_core.engines.shims import Patch, own, telling, without_own_frames
from opguard_core.engines.triton_ir import Writes, writes_of

if TYPE_CHECKING:
    from opguard_core.engines.outside import Open, OutsideCalls
    from opguard_core.engines.patches import Patches

OPERATOR = "triton."
_OWNERS = {
    "triton.runtime.jit": ("JITFunction",),
    "triton.runtime.autotuner": ("Autotuner", "Heuristics"),
    "triton.runtime.interpreter": ("InterpretedFunction",),
}
_OPTIONS = ("num_warps", "num_stages", "num_ctas")  # of a launch, that decide how a kernel computes
_MAX_WRAPPERS = 16  # of one kernel


class _Run:
    """One run of a kernel or of what wraps one; the outermost on its thread has a call."""

    def __init__(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.kernel, self.args, self.kwargs = kernel, args, kwargs
        self.grid: Any = None
        self.compiled: Any = None
        self.call: Open | None = None
        self.outer: _Run | None = None
        self.innermost = self
        self.muted: Any = None  # lane that is muted while it runs
        self.counts = True


class TritonKernels:
    """Observes launches of Triton kernels.

    Args:
        outside: Where events are made.
    """

    def __init__(self, outside: OutsideCalls) -> None:
        self._outside = outside
        self._here = threading.local()
        self._imports: list[WhenImported] = []
        self.num_read = self.num_unread = 0  # launches of which the TTIR told what they write, or did not

    def install(self, patches: Patches) -> None:
        """Replace the functions that launch, now or when the program imports Triton."""
        for name, owners in _OWNERS.items():
            watcher = WhenImported(name, functools.partial(self._found, patches, owners))
            self._imports.append(watcher)
            watcher.watch()

    def remove(self) -> None:
        """Watch for imports no more; what was replaced is put back by `Patches`."""
        for watcher in self._imports:
            watcher.stop()
        self._imports.clear()

    def _found(self, patches: Patches, owners: tuple[str, ...], module: ModuleType) -> None:
        for name in owners:
            owner = getattr(module, name, None)
            if not isinstance(owner, type):
                continue
            if callable(owner.__dict__.get("run")):
                patches.keep(Patch(owner, "run", self._observed))
            elif hasattr(owner, "__getitem__"):  # before Triton 2.2 each kernel had a launcher of its own as ``run``
                patches.keep(Patch(owner, "__getitem__", self._observed_launchers))

    def _observed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A ``run`` that is observed."""

        @functools.wraps(original)
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            entered = self._enter(kernel, args, kwargs, sys._getframe(1))
            try:
                result = original(kernel, *args, **entered.kwargs)
            except BaseException as error:
                error.__traceback__ = without_own_frames(error.__traceback__)
                self._leave(entered, None, error)
                raise
            self._leave(entered, result, None)
            return result

        return own(run)

    def _observed_launchers(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A ``kernel[grid]`` whose call is observed."""

        @functools.wraps(original)
        def launcher(kernel: Any, grid: Any) -> Any:
            return telling(
                original(kernel, grid),
                lambda args, kwargs: self._enter(kernel, args, {**kwargs, "grid": grid}, sys._getframe(2)),
                self._leave,
            )

        return own(launcher)

    def _enter(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: Any) -> _Run:
        """A kernel, or what wraps one, is about to run. Never raises."""
        entered = _Run(kernel, args, kwargs)
        outer: _Run | None = getattr(self._here, "run", None)
        try:
            if kwargs.get("warmup"):
                entered.counts = False
                return entered
            grid = kwargs.get("grid")
            if callable(grid) and _is_kernel(kernel):
                entered.kwargs = {**kwargs, "grid": _noting(grid, entered)}
            elif grid is not None:
                entered.grid = grid
            if outer is not None:
                outer.innermost = entered  # of several trials the last is what was chosen
                entered.outer = outer
                return entered
            if not self._outside.watches():
                entered.counts = False
                return entered
            self._here.run = entered
            tensors = [(path, tensor) for path, _, tensor in _pointers(kernel, args, kwargs)]
            entered.call = self._outside.before(OPERATOR + name_of(kernel), tensors, "", frame)
            self._outside.know_addresses(1)
            if not _is_kernel(kernel) or hasattr(kernel, "interpret_fn") or type(kernel).__name__ == "InterpretedFunction":
                entered.muted = self._outside.mute()
        except Exception as error:  # noqa: BLE001  the step guard
            self._outside.context.guard.caught("Triton kernel", error)
        return entered

    def _leave(self, entered: _Run, result: Any, error: BaseException | None) -> None:
        """It has run. Never raises."""
        if entered.outer is not None:
            entered.compiled = result
            entered.outer.compiled = result
            return
        if not entered.counts:
            return
        self._here.run = None
        self._outside.know_addresses(-1)
        self._outside.unmute(entered.muted)
        if entered.call is None:
            return
        inner, written = entered.innermost, None
        try:
            entered.call.args_text = _arguments(entered.kernel, inner)
            if error is None:
                written = self._written(entered, inner, result)
        except Exception as failure:  # noqa: BLE001  the step guard
            self._outside.context.guard.caught("Triton kernel", failure)
        if error is not None:
            self._outside.raised(entered.call, error)
        else:
            self._outside.after(entered.call, (), written)

    def _written(self, entered: _Run, inner: _Run, result: Any) -> list[tuple[str, torch.Tensor]] | None:
        """The arguments that the kernel wrote, None if that is not known."""
        found = None if _may_write_itself(entered.kernel) else _read(inner.compiled if inner is not entered else result)
        pointers = _pointers(entered.kernel, entered.args, entered.kwargs)
        chosen = None if found is None else _matched(found, pointers)
        self.num_read += chosen is not None
        self.num_unread += chosen is None
        return chosen

    def report(self) -> dict[str, int]:
        """Launches whose kernel's text told what it writes, and the others."""
        return {"written_by_ttir": self.num_read, "written_by_comparison": self.num_unread} if self.num_read + self.num_unread else {}


def _is_kernel(kernel: Any) -> bool:
    """Whether it is a kernel itself, not what wraps one."""
    return not hasattr(kernel, "configs") and not hasattr(kernel, "values")


def innermost(kernel: Any) -> Any:
    """The kernel in what wraps it: autotuning, heuristics."""
    for _ in range(_MAX_WRAPPERS):
        if _is_kernel(kernel):
            break
        kernel = kernel.fn
    return kernel


def name_of(kernel: Any) -> str:
    """Name of a kernel's Python function."""
    inner = innermost(kernel)
    name = getattr(inner, "__name__", None) or getattr(getattr(inner, "fn", None), "__name__", None)
    return name if type(name) is str else "unnamed"


def _may_write_itself(kernel: Any) -> bool:
    """Whether something but the kernel may write its arguments: hooks, and what autotuning restores between its trials."""
    for _ in range(_MAX_WRAPPERS):
        if _is_kernel(kernel):
            return bool(getattr(kernel, "pre_run_hooks", None))
        configs = getattr(kernel, "configs", ())
        if any(getattr(config, "pre_hook", None) is not None for config in configs):
            return True
        if (
            getattr(kernel, "reset_to_zero", None)
            or getattr(kernel, "restore_value", None)
            or getattr(kernel, "user_defined_pre_hook", False)
        ):
            return True
        kernel = kernel.fn
    return True


def _noting(grid: Callable[[Any], Any], entered: _Run) -> Callable[[Any], Any]:
    """The same function of a grid, which tells what it gave."""

    @functools.wraps(grid)
    def note(meta: Any) -> Any:
        entered.grid = found = grid(meta)
        return found

    return own(note)


def _bound(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[int, str, Any]]:
    """Position, name and value of each parameter that the caller gave."""
    names = list(innermost(kernel).arg_names)
    for at, name in enumerate(names):
        if at < len(args):
            yield at, name, args[at]
        elif name in kwargs:
            yield at, name, kwargs[name]


def _pointers(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, str, torch.Tensor]]:
    """Slot path, name of the parameter, and tensor of each pointer argument, in order."""
    found: list[tuple[str, str, torch.Tensor]] = []

    def gather(path: str, name: str, value: Any) -> None:
        if isinstance(value, tuple):
            for at, item in enumerate(value):
                gather(f"{path}.{at}", f"{name}.{at}", item)
            return
        for _ in range(2):  # a tensor reinterpreted as of another type, a descriptor of one
            if isinstance(value, torch.Tensor):
                found.append((path, name, value))
                return
            if type(value).__name__ not in ("TensorWrapper", "TensorDescriptor"):
                return
            value = value.base

    for at, name, value in _bound(kernel, args, kwargs):
        gather(f"in.{at}", name, value)
    return found


def _arguments(kernel: Any, run: _Run) -> str:
    """Canonical text of the plain arguments, the constants and options chosen, and the grid."""
    texts = [
        argument_text(name, _plain(value)) for _, name, value in _bound(kernel, run.args, run.kwargs) if not isinstance(value, torch.Tensor)
    ]
    texts += [argument_text(option, run.kwargs[option]) for option in _OPTIONS if option in run.kwargs]
    grid = run.grid
    if grid is not None and not callable(grid):
        grid = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
        texts.append(argument_text("grid", tuple(int(size) for size in grid)))
    return ";".join(texts)


def _plain(value: Any) -> Any:
    """A type of Triton's is known by its name."""
    name = getattr(value, "name", None) if type(value).__name__ == "dtype" and type(value).__module__.startswith("triton") else None
    return f"tl.{name}" if type(name) is str else value


def _read(compiled: Any) -> Writes | None:
    """What a compiled kernel's text says that it writes."""
    texts = getattr(compiled, "asm", None)
    ttir = texts.get("ttir") if texts is not None and hasattr(texts, "get") else None
    return writes_of(ttir) if type(ttir) is str else None


def _matched(found: Writes, pointers: list[tuple[str, str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]] | None:
    """The tensors that a text's written pointers are, None if its pointers are not those of the call."""
    given = [name for _, name, _ in pointers]
    if len(found.pointers) != len(given):
        return None
    named = [name for name in found.pointers if name in given]
    if named and list(found.pointers) != given:
        return None
    return [(f"mut.{pointers[at][0].partition('.')[2]}", pointers[at][2]) for at in sorted(found.written)]
