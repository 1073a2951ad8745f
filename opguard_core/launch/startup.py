"""The bootstrap file as a module, for the parts of it that are needed outside a starting interpreter.

One file must hold the bootstrap, with nothing to import; what it knows (command lines, rank variables, the record files)
is known here by loading that file under another name, under which it does not act.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent / "bootstrap"
_NAME = "opguard_core.launch.bootstrap.loaded"


def load() -> ModuleType:
    """The bootstrap's functions and names; loaded once."""
    known = sys.modules.get(_NAME)
    if known is None:
        spec = importlib.util.spec_from_file_location(_NAME, FOLDER / "sitecustomize.py")
        assert spec is not None
        assert spec.loader is not None
        known = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(known)
        sys.modules[_NAME] = known
    return known


bootstrap = load()
