"""As much of Triton as launches a kernel from Python, for an environment without it: what `engines.triton` replaces, and no more.

Current Triton has ``JITFunction.run``; `install` with ``old`` makes it as it was before 2.2, a launcher of its own for each kernel.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from opguard_core.engines.quiet import quiet
from opguard_core.engines.shims import own

TEXTS = Path(__file__).parents[2] / "fixtures" / "ttir"


class KernelInterface:
    def __getitem__(self, grid: Any) -> Any:
        return own(lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs))


def _kernel(self: Any, emulation: Callable[..., None], text: str) -> None:
    self.fn, self.__name__ = emulation, emulation.__name__
    self.arg_names = list(inspect.signature(emulation).parameters)
    self.text, self.trials = text, 0


def _launch(self: Any, args: tuple[Any, ...], grid: Any, kwargs: dict[str, Any]) -> Any:
    self.trials += 1
    given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
    if callable(grid):
        grid = grid(given)
    assert len(grid) >= 1
    with quiet():  # a launch is nothing that torch sees
        self.fn(**{name: given[name] for name in self.arg_names if name in given})
    return SimpleNamespace(asm={"ttir": (TEXTS / f"{self.text}.mlir").read_text()} if self.text else {})


class JITFunction(KernelInterface):
    """A kernel: ``emulation`` is what it does, ``text`` names the fixture that is its TTIR."""

    def __init__(self, emulation: Callable[..., None], text: str = "") -> None:
        _kernel(self, emulation, text)

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return None if warmup else _launch(self, args, grid, kwargs)


class OldJITFunction(KernelInterface):
    """As before Triton 2.2."""

    def __init__(self, emulation: Callable[..., None], text: str = "") -> None:
        _kernel(self, emulation, text)
        self.run = lambda *args, grid, warmup, **kwargs: _launch(self, args, grid, kwargs)


class Autotuner(KernelInterface):
    def __init__(self, fn: Any, configs: list[dict[str, Any]]) -> None:
        self.fn, self.arg_names = fn, fn.arg_names
        self.configs = [SimpleNamespace(kwargs=config, pre_hook=None) for config in configs]
        self.best: Any = None

    def run(self, *args: Any, **kwargs: Any) -> Any:
        if self.best is None:
            import torch

            for config in self.configs:
                torch.zeros(4)  # a cache is cleared between trials
                self.fn.run(*args, **kwargs, **config.kwargs)
            self.best = self.configs[-1]
        return self.fn.run(*args, **kwargs, **self.best.kwargs)


class Heuristics(KernelInterface):
    def __init__(self, fn: Any, values: dict[str, Callable[[Any], Any]]) -> None:
        self.fn, self.arg_names, self.values = fn, fn.arg_names, values

    def run(self, *args: Any, **kwargs: Any) -> Any:
        for name, value in self.values.items():
            kwargs[name] = value({**dict(zip(self.arg_names, args, strict=False)), **kwargs})
        return self.fn.run(*args, **kwargs)


def install(patch: pytest.MonkeyPatch, *, old: bool = False) -> None:
    """Have the modules of Triton be these until the test ends."""
    for name, owners in (("jit", (OldJITFunction if old else JITFunction,)), ("autotuner", (Autotuner, Heuristics))):
        module = ModuleType(f"triton.runtime.{name}")
        for owner in owners:
            setattr(module, owner.__name__.removeprefix("Old"), owner)
        patch.setitem(sys.modules, module.__name__, module)
