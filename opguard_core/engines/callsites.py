"""Calls of native functions at the places where the program makes them: the import hook that rewrites, and who observes.

What torch's dispatcher cannot see (pybind11, CPython, Cython and ctypes functions) is observed by `extensions.ExtensionCalls`; this
file says which calls reach it. A rewritten call that nobody wants stays the program's own, from its own frame. Code that
``torch.compile`` traces makes its calls unobserved: the compiler must see the program, and an extension's call leaves the graph anyway.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from opguard_core.engines.extensions import ExtensionCalls, wanted_by
from opguard_core.engines.outside import OutsideCalls
from opguard_core.instrument import hook, observed, runtime
from opguard_core.plan.callsites import ALL

# Native functions that look at the frame of their caller, which would be ours.
_FRAME_READERS = frozenset(
    {"extension.sys._getframe", "extension.sys._getframemodulename", "extension.sys.settrace", "extension.sys.setprofile"}
    | {"extension._warnings.warn", "extension._warnings.warn_explicit", "extension.sys.call_tracing", "extension.sys._current_frames"}
)


class Callsites:
    """The callsite engine of one rank; does nothing without patterns.

    Args:
        patterns: `RunConfig.callsites`.
        outside: Makes the events.
        root: Folder that source files are named relative to.
    """

    def __init__(self, patterns: tuple[str, ...], outside: OutsideCalls, root: Path) -> None:
        self._patterns, self._root = patterns, root
        self._hook: hook.Hook | None = None
        self._observer: ExtensionCalls | None = None
        if patterns:
            self._hook = hook.current or hook.Hook(everything=ALL in patterns)
            wanted = wanted_by(tuple("*" if pattern == ALL else pattern for pattern in patterns))
            self._observer = ExtensionCalls(
                outside, lambda operator: operator not in _FRAME_READERS and wanted(operator), outside.addresses
            )

    def install(self) -> None:
        """Rewrite what is imported from now on, and observe it."""
        if self._hook is not None:
            runtime.chosen.clear()
            self._hook.install()
            runtime.compiling = torch.compiler.is_compiling
            runtime.observe(self._observer)

    def remove(self) -> None:
        """Observe nothing more; rewritten code stays, and calls what it called before."""
        if self._hook is not None:
            if runtime.observer is self._observer:
                runtime.observe(None)
            self._hook.remove()

    def report(self) -> dict[str, Any]:
        """For the manifest: what was asked for and what became of each module; empty if nothing was asked for."""
        if self._hook is None:
            return {}
        return {"active": True, "patterns": list(self._patterns), "observed": observed.report(self._root), **self._hook.report()}
