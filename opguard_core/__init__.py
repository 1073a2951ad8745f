"""OpGuard core: what runs inside a training process, and the pure code that judges its traces.

Importing this package imports nothing but the standard library. Training-side parts (``capture``, ``engines``,
``probe``, ``determinism``) import torch when they start; offline parts (``align``, ``certify``, ``evidence``) never do.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
