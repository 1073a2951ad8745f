"""One thread of the program, as the engine sees it: its role, its open modules, its autograd bookkeeping."""

from __future__ import annotations

import threading
from typing import Any

NODE_MEMORY = 1 << 18  # forward events remembered by autograd sequence number


Place = tuple[int | None, int | None, int | None]  # stack, user frame, library frame: rows as in `places.Stack`


class Backwards:
    """Where a thread called the autograd engine: one entry for each call that has not come back, innermost last.

    The engine's own threads run operators without a Python frame, while the thread that called waits; several calls may be open
    then, of which the graph task says whose operator it is. A call that another thread made is taken for the innermost of ours.
    """

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: list[tuple[int, Place]] = []  # graph task, -1 while not known

    def begin(self, task: int, place: Place) -> None:
        """The engine is called, from inside graph task ``task`` (-1: from none)."""
        if self._open and self._open[-1][0] < 0:
            self._open[-1] = task, self._open[-1][1]
        self._open.append((-1, place))

    def end(self) -> None:
        """The innermost call came back."""
        self._open.pop()

    def place(self, task: int) -> Place | None:
        """Where the engine was called for a graph task, None if no call is open."""
        calls = list(self._open)  # the thread that called may begin another one meanwhile
        for known, place in reversed(calls):
            if known == task:
                return place
        return calls[-1][1] if calls else None


class Lane:
    """State of one Python thread; touched only by that thread (or by autograd threads that work for it while it waits).

    Attributes:
        role: "main", or "Thread:<target qualname>".
        index: Number of the thread, in order of first event.
        modules: Open module calls, outermost first: (module, path).
        root_grad: Whether gradients were on when the outermost open module was called.
        backwards: Where its open calls of the autograd engine were made.
        create_graph: For each open call of the autograd engine, whether a graph of the backward is asked for.
        last_node: Autograd sequence counter when this thread last ran an operator.
        num_events: Events begun on this thread.
        forward_of: Event by sequence number of the node it made.
        mode: The mode that observes this thread.
        aside: Whether the mode is off the stack for a moment, see `aside`.
        away: Whether it is off the stack until a capture window comes near.
        muted: Operators pass through unobserved.
    """

    __slots__ = (
        "aside",
        "away",
        "backwards",
        "counted_in",
        "create_graph",
        "forward_of",
        "index",
        "last_node",
        "microbatches",
        "mode",
        "modules",
        "muted",
        "num_events",
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
        self.backwards = Backwards()
        self.create_graph: list[bool] = []
        self.last_node = 0
        self.num_events = 0
        self.forward_of: dict[int, tuple[int, str]] = {}
        self.muted = False
        self.microbatches = 0
        self.mode: Any = None
        self.aside = self.away = False
        self.counted_in = 0

    def come_back(self) -> None:
        """Put the mode back on the stack if it stepped aside."""
        if self.aside:
            self.aside = False
            self.mode.push()

    def microbatch(self, window: int) -> int:
        """Top-level backward calls this thread has completed in a window.

        Counted per thread: workers that run backward side by side would otherwise number each other's events at random.
        """
        return self.microbatches if self.counted_in == window else 0

    def count_microbatch(self, window: int) -> None:
        """One more top-level backward call is complete."""
        self.microbatches = self.microbatch(window) + 1
        self.counted_in = window

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

    def leave(self) -> None:
        """Take the calling thread's lane away."""
        self._local.lane = None

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
