"""Ranks that a program starts itself, with ``torch.multiprocessing.spawn`` or plain ``multiprocessing``.

Nothing in their environment says which rank they are; they say so when they join a process group. The moment is taken
from the function that makes the group the default one, which leaves no frame of ours in a traceback of
``init_process_group``. What it cannot see: what such a rank did before it joined, and ranks made by fork.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

ASIDE = "spawned-"


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
