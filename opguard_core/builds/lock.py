"""One builder at a time per part and node, and what the one before said when it failed.

A lock is a file beside the cache's entries that its last holder removes. A holder that fails writes the reason into it: whoever
waited reads it there and does not run the same failing compiler again. Where files cannot be locked (some network file systems)
all build, each under a name of its own, and the renames settle it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.02


class Turn:
    """Our turn to build.

    Attributes:
        failure: Why the one who built while we waited failed; empty if it did not or we did not wait.
    """

    def __init__(self, descriptor: int, failure: str) -> None:
        self._descriptor = descriptor
        self.failure = failure

    def failed(self, reason: str) -> None:
        """Tell those who wait."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, reason.encode(), 0)


@contextmanager
def turn(path: Path, limit_s: float, waiting: Callable[[float], None]) -> Iterator[Turn]:
    """Hold the lock ``path``, or go on without it after ``limit_s`` or where files cannot be locked.

    Args:
        path: Of the lock file.
        limit_s: How long the holder may take.
        waiting: Called with the seconds waited so far, again and again.
    """
    descriptor = _open(path)
    held = waited = False
    try:
        if descriptor >= 0:
            held, waited = _hold(descriptor, limit_s, waiting)
        failure = os.pread(descriptor, 1 << 16, 0).decode("utf-8", "replace") if held and waited else ""
        yield Turn(descriptor if held else -1, failure)
    finally:
        if held:
            path.unlink(missing_ok=True)  # while it is held: whoever waits has it open and finds what was built
        if descriptor >= 0:
            os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return -1


def _hold(descriptor: int, limit_s: float, waiting: Callable[[float], None]) -> tuple[bool, bool]:
    """Whether the lock is ours, and whether someone else had it first."""
    begun = time.monotonic()
    waited = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
        except OSError:
            return False, waited
        else:
            return True, waited
        seconds = time.monotonic() - begun
        if seconds > limit_s:
            return False, waited
        waiting(seconds)
        time.sleep(_POLL_S)
