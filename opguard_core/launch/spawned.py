"""Ranks that a program starts itself, with ``torch.multiprocessing.spawn`` or plain ``multiprocessing``.

Nothing in their environment says which rank they are; they say so when they join a process group. The moment is taken
from the function that makes the group the default one, which leaves no frame of ours in a traceback of
``init_process_group``. What it cannot see: what such a rank did before it joined, and ranks made by fork.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opguard_core.intercept import shim as launches

ASIDE = "spawned-"
_STARTS = ("multiprocessing.spawn import", "multiprocessing.forkserver import")  # of a child's code; a resource tracker is no child


def aside_folder(rank: int) -> str:
    """Folder of a rank whose parent is captured too, until the run has ended."""
    return f"{ASIDE}{rank:05d}"


def on_join(joined: Callable[[int, int], None]) -> bool:
    """Have ``joined(rank, world_size)`` called when this process has a default process group.

    Returns:
        Whether that can be seen in this torch.
    """
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    original = getattr(c10d, "_update_default_pg", None)
    if original is None:
        return False

    def _update_default_pg(pg: Any) -> None:
        original(pg)
        if pg is not None and pg != c10d.GroupMember.NON_GROUP_MEMBER:
            joined(pg.rank(), pg.size())

    c10d._update_default_pg = _update_default_pg
    return True


def preload_children(shim: str) -> str:
    """Have the processes that ``multiprocessing`` starts anew begin with the launch shim, as this one did; forked ones have it.

    The variables are set for the time of the one call that starts a process, and for the C library alone: ``os.environ`` never shows
    them, and compilers and other programs do not get them.

    Args:
        shim: Path of the shim.

    Returns:
        Why it cannot be; "" if it can.
    """
    util: Any = sys.modules.get("multiprocessing.util")
    original = getattr(util, "spawnv_passfds", None)
    if original is None:
        return "multiprocessing starts its processes in a way that is not known"
    lock = threading.Lock()

    def spawnv_passfds(path: Any, args: Any, passfds: Any) -> Any:
        if not any(start in str(word) for word in args for start in _STARTS):
            return original(path, args, passfds)
        with lock:
            try:
                os.putenv(launches.PRELOAD, launches.preloaded(os.environ, Path(shim))[launches.PRELOAD])
                os.putenv(launches.PATH, shim)  # for the child's bootstrap, which takes both off again
                return original(path, args, passfds)
            finally:
                for name in (launches.PRELOAD, launches.PATH):
                    if name in os.environ:
                        os.putenv(name, os.environ[name])
                    else:
                        os.unsetenv(name)

    util.spawnv_passfds = spawnv_passfds
    return ""
