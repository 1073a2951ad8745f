"""Installs the hook before the program begins; called by the bootstrap in a process whose plan asks for callsites."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from opguard_core.instrument import hook
from opguard_core.instrument.main import Main


def install(run: str, kind: str, value: str, before: Iterable[str]) -> None:
    """Rewrite the main program and whatever it imports.

    Args:
        run: The run folder, which the bootstrap trusts.
        kind: Of the interpreter's command line: "script", "module", "command" or "stdin".
        value: Script or module.
        before: Names of the modules that were there before any of ours was loaded.
    """
    plan = json.loads(Path(run, "plan.json").read_bytes())
    hook.current = hook.Hook(everything="all" in plan["callsites"])
    hook.current.install()
    Main(hook.current, kind, value).prepare()
    _give_names_back(kind, value, frozenset(before))


def _give_names_back(kind: str, value: str, before: frozenset[str]) -> None:
    """Take what we loaded out of ``sys.modules`` where the program has a file of that name; ours keep what they have."""
    standard = str(Path(os.__file__).parent)
    own = [Path(value).resolve().parent if kind == "script" else Path.cwd()]
    own += map(Path, sys.path[: sys.path.index(standard) if standard in sys.path else 0])
    for name in set(sys.modules) - before:
        top = name.partition(".")[0]
        if top != "opguard_core" and any((place / f"{top}.py").exists() or (place / top / "__init__.py").exists() for place in own):
            del sys.modules[name]
