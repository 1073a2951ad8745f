"""OpGuard core: what runs inside a training process, and the pure code that judges its traces.

Importing this package imports nothing but the standard library. Training-side parts (``capture``, ``engines``,
``probe``, ``determinism``) import torch when they start; offline parts (``align``, ``certify``, ``evidence``) never do.
"""

import sys
from types import ModuleType

from opguard_core.marks import boundary, probe

__version__ = "0.1.0"

__all__ = ["__version__", "boundary", "probe"]


class _Package(ModuleType):
    """`probe` is the function of that name, also once the package of that name has been imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "probe" or not isinstance(value, ModuleType):  # the import system names a package's parts in it
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
