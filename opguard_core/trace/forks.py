"""Threads of ours around ``os.fork()``: they end before it and start again in the parent; the child is left without them.

A child must not inherit a lock of the allocator or of Arrow that such a thread holds, and Python 3.12 warns about forking with
threads, which the training did not have without us.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol


class StopsForForks(Protocol):
    """What has a thread of ours."""

    def _before_fork(self) -> None: ...

    def _after_fork_in_parent(self) -> None: ...

    def _after_fork_in_child(self) -> None: ...


def stop_around_forks(live: Iterable[StopsForForks]) -> None:
    """Tell all that is in ``live`` at the time of each fork. Who registers later is stopped earlier and started later.

    Args:
        live: A ``weakref.WeakSet``; looked at when a fork happens.
    """

    def before() -> None:
        for one in list(live):
            one._before_fork()

    def in_parent() -> None:
        for one in list(live):
            one._after_fork_in_parent()

    def in_child() -> None:
        for one in list(live):
            one._after_fork_in_child()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)
