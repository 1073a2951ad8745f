"""What a replayed CUDA graph runs: the kernels that were recorded while it was captured, and the events they belonged to then.

    capture ends -> graph (handle) -> made ready (another handle) -> launched, as often as the program likes

Fed by whoever takes the shim's records, in their order; one memory for the process, since graphs outlive a session. Nodes that a program
adds to a graph by hand are not known here.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

NO_EVENT = -1
MOST_CAPTURES = 4096  # begun and never made a graph: the oldest are forgotten
MOST_ROWS = 4096  # of one graph; one with more loses the events of its kernels, not the kernels


class Node(NamedTuple):
    """Work inside a graph.

    Attributes:
        kind: Position in ``shim.KINDS`` of what was captured.
        name: Recorded name of a kernel, "" without one.
        seq: Event in flight when it was captured, `NO_EVENT` for none.
    """

    kind: int
    name: str
    seq: int


Nodes = Counter[Node]


class Graphs:
    """What is known of the process's graphs. One caller at a time."""

    def __init__(self) -> None:
        self._captures: dict[int, Nodes] = {}
        self._made: dict[int, Nodes] = {}  # by handle
        self._ready: dict[int, Nodes] = {}  # by the handle that is launched
        self.replays = self.unknown = 0

    def captured(self, capture: int, node: Node) -> None:
        """Something was recorded into a capture."""
        if capture not in self._captures and len(self._captures) >= MOST_CAPTURES:
            del self._captures[next(iter(self._captures))]
        self._captures.setdefault(capture, Counter())[node] += 1

    def made(self, graph: int, capture: int) -> None:
        """A capture has become a graph; one into which nothing was recorded has no kernels."""
        self._made[graph] = self._captures.pop(capture, Counter())

    def ready(self, handle: int, graph: int) -> None:
        """A graph can be launched under this handle from now on."""
        nodes = self._made.get(graph)
        if nodes is None:
            self._ready.pop(handle, None)
        else:
            self._ready[handle] = nodes if len(nodes) <= MOST_ROWS else _without_events(nodes)

    def gone(self, handle: int) -> None:
        """A graph, or what is launched, was destroyed: the handle may come again for another."""
        self._made.pop(handle, None)
        self._ready.pop(handle, None)

    def launched(self, handle: int) -> Nodes | None:
        """What one launch runs; None if that is not known."""
        nodes = self._ready.get(handle)
        self.replays += 1
        self.unknown += nodes is None
        return nodes


def _without_events(nodes: Nodes) -> Nodes:
    found: Nodes = Counter()
    for node, count in nodes.items():
        found[node._replace(seq=NO_EVENT)] += count
    return found


of_process = Graphs()
"""Of this process."""
