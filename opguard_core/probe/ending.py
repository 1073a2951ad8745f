"""What is closed when a process ends, after everybody who may still need it.

Python runs exit handlers last registered first, and a device is met long after the capture began: its copier would be ended before the
capture has taken what it brought. So one handler, registered before the capture's own (`arm`), closes what was told to it later.
Cannot see: a process that ends without exit handlers (``os._exit`` of C, a signal that kills).
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

__all__ = ["arm", "close_last"]

_closers: list[Callable[[], None]] = []
_is_armed = False


def arm() -> None:
    """Register the exit handler, once; by a capture, before it registers its own."""
    global _is_armed
    if not _is_armed:
        _is_armed = True
        atexit.register(_close)


def close_last(close: Callable[[], None]) -> None:
    """Call ``close`` when the process ends, after every exit handler that was registered since `arm`."""
    arm()
    _closers.append(close)


def _close() -> None:
    while _closers:
        _closers.pop()()
