"""Promises of digests that the native observer receives: what stands in rows and sums of Python while a cell of it waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opguard_core.fingerprint.digest import Digests
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import LOST, Promise, Unchanged

# Waits for a cell, at most so many seconds, and fills it; set by the session whose cells they are.
Wait = Callable[[Any, float], object]
_wait: Wait | None = None


def wait_with(wait: Wait | None) -> None:
    """Say how a cell is waited for; None: nobody fills any more."""
    global _wait
    _wait = wait


class CellPromise(Promise):
    """A promise that a cell of the native observer keeps.

    Args:
        cell: ``observer.Cell``.
    """

    __slots__ = ("cell",)

    def __init__(self, cell: Any) -> None:
        super().__init__(None, cell.nbytes, cell.ticket)
        self.cell = cell

    def look(self) -> Digests | Unreadable | Unchanged | None:
        """As `Promise.look`."""
        if self.result is None:
            found = self.cell.look()
            if found is not None:
                self.keep(found or Unreadable(LOST), self.cell.t_device_ns or None)
        return self.result

    def wait(self, timeout_s: float) -> None:
        """As `Promise.wait`."""
        if _wait is not None:
            _wait(self.cell, timeout_s)

    def lose(self, why: str) -> None:
        """As `Promise.lose`, for all that share the cell."""
        self.cell.lose()
        super().lose(why)
