"""The list of programs, and what a program may ask for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MODULES = (
    "trainings",
    "optimizers",
    "operators",
    "gradients",
    "transforms",
    "kinds",
    "modes",
    "threads",
    "extensions",
    "outside",
    "whole_graphs",
    "data",
)
MODES = ("verify", "full", "trusted")
PROGRAMS: dict[str, Program] = {}


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        name: "module.function".
        run: Called without arguments; what it returns must not depend on being observed.
        full: Full tier only.
        overlaps: Its threads run side by side: events of different threads come in any order.
        steps: Window of steps that is recorded.
        differs: Why engines are known to tell something else of it, "" if they have to agree.
        needs: Names that torch must have ("torch.nested.nested_tensor"); without one the test is skipped and says so.
    """

    name: str
    run: Callable[[], Any]
    full: bool = False
    overlaps: bool = False
    steps: tuple[int, int] | None = None
    differs: str = ""
    needs: tuple[str, ...] = ()

    @property
    def quick_mode(self) -> str:
        """The one mode in which the quick tier runs it: all modes have their turn."""
        return MODES[sum(self.name.encode()) % len(MODES)]

    def missing(self) -> str:
        """What this torch lacks of what the program needs, "" if nothing."""
        for dotted in self.needs:
            module, _, name = dotted.rpartition(".")
            try:
                found = getattr(importlib.import_module(module), name, None)
            except ImportError:
                found = None
            if found is None:
                return dotted
        return ""


def program(function: Callable[[], Any] | None = None, **asked: Any) -> Any:
    """Add a function to the list."""

    def add(function: Callable[[], Any]) -> Callable[[], Any]:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        assert name not in PROGRAMS, name
        PROGRAMS[name] = Program(name, function, **asked)
        return function

    return add if function is None else add(function)


def load() -> dict[str, Program]:
    """Import all modules of programs."""
    for module in MODULES:
        importlib.import_module(f"tests.support.engine_programs.{module}")
    return PROGRAMS
