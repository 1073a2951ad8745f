"""Where the C and CUDA sources of ``cuda/`` are: in the installed package, or in the checkout beside it."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def cuda_folder() -> Path:
    """The folder of ``fingerprint.cu`` and ``launch.c``; the wheel carries it as ``opguard_core/_cuda``."""
    shipped = _PACKAGE / "_cuda"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "cuda"
