"""One thread of the program, as the engine sees it: its role, its open modules, its autograd bookkeeping."""

from __future__ import annotations

import threading
from typing import Any

NODE_MEMORY = 1 << 18  # forward events remembered by autograd sequence number


class Lane:
    """State of one Python thread; touched only by that thread (or by autograd threads that work for it while it waits).

    Attributes:
        role: "main", or "Thread:<target qualname>".
        index: Number of the thread, in order of first event.
        modules: Open module calls, outermost first: (module, path).
        root_grad: Whether gradients were on when the outermost open module was called.
        backward_depth: Open calls of the autograd engine.
        create_graph: For each of them, whether a graph of the backward is asked for.
        last_node: Autograd sequence counter when this thread last ran an operator.
        forward_of: Event by sequence number of the node it made.
        muted: Operators now are ours, not the program's.
    """

    __slots__ = (
        "backward_depth",
        "create_graph",
        "forward_of",
        "index",
        "last_node",
        "modules",
        "muted",
        "nested_optimizers",
        "path",
        "role",
        "root_grad",
    )

    def __init__(self, role: str) -> None:
        self.role = role
        self.index: int | None = None
        self.modules: list[Any] = []
        self.path = ""
        self.root_grad = False
        self.backward_depth = 0
        self.create_graph: list[bool] = []
        self.last_node = 0
        self.forward_of: dict[int, tuple[int, str]] = {}
        self.muted = False
        self.nested_optimizers = 0

    def link(self, node: int, seq: int, operator: str) -> None:
        """Remember which event made an autograd node."""
        known = self.forward_of
        if len(known) >= NODE_MEMORY:
            for key in list(known)[: NODE_MEMORY // 2]:
                del known[key]
        known[node] = (seq, operator)


class Lanes:
    """All threads observed."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._count = 0
        self._lock = threading.RLock()
        self.all: list[Lane] = []

    def current(self) -> Lane | None:
        """The calling thread's lane, None if it is not observed."""
        return getattr(self._local, "lane", None)

    def enter(self, role: str) -> Lane:
        """Give the calling thread a lane."""
        lane = Lane(role)
        self._local.lane = lane
        return lane

    def number(self, lane: Lane) -> int:
        """Index of a lane, given out at its first event."""
        with self._lock:
            if lane.index is None:
                lane.index = self._count
                self._count += 1
                self.all.append(lane)
        return lane.index


def role_of(thread: threading.Thread) -> str:
    """The lane of a thread: threads of one target are one lane, whatever their names."""
    if thread is threading.main_thread():
        return "main"
    target = getattr(thread, "_target", None)
    if target is not None:
        name = getattr(target, "__qualname__", None) or type(target).__qualname__
        return f"Thread:{name}"
    return f"Thread:{type(thread).__qualname__}"
