"""Notice when the program imports one module, to look at its functions; gone from the import system as soon as it has.

What it cannot see: a module whose import is under way when capture starts.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from opguard_core.engines.shims import own


class WhenImported:
    """A finder that finds nothing itself.

    Args:
        name: Full name of the module.
        then: Called with it when its code has run; must not raise.
    """

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def watch(self) -> None:
        """Be asked first; a module that is loaded already is told at once."""
        known = sys.modules.get(self._name)
        if known is None:
            sys.meta_path.insert(0, self)
        else:
            self._then(known)

    def stop(self) -> None:
        """Be asked no more."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Part of the import system's protocol. Cost: one comparison an import."""
        if name != self._name:
            return None
        self.stop()
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        """Have the loader tell when the module's code has run; the loader is as before by then."""
        run, then = getattr(loader, "exec_module", None), self._then
        if run is None or not hasattr(loader, "__dict__"):
            return

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            run(module)
            then(module)

        loader.exec_module = own(exec_module)
