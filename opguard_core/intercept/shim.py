"""The shim's Python side: builds it before the program starts, finds it in an observed process, takes what it recorded.

`cuda/launch_shim.c` says what it sees and what it cannot. It works only from the first instruction of a process on (a library that is
loaded has its calls bound), so the launcher preloads it and an observed rank finds itself with it or without it. Knows nothing of
boundaries but their numbers.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opguard_core import builds
from opguard_core.ids import Work
from opguard_core.intercept.graphs import NO_EVENT, Graphs, Node, of_process

if TYPE_CHECKING:  # the launcher imports this module, and says itself when numpy is missing
    import numpy as np
    import numpy.typing as npt

VERSION = 3
NO_BOUNDARY = (1 << 64) - 1
OURS = NO_BOUNDARY - 1  # in flight while the capture itself works: not recorded
TOKENS = 1 << 62  # from here on: calls in flight whose event has no number yet
PRELOAD = "LD_PRELOAD"
PATH = "OPGUARD_SHIM_PATH"  # for the bootstrap: which part of the preload is ours
KINDS = tuple(work.value for work in (Work.KERNEL, Work.COOPERATIVE, Work.GRAPH, Work.COPY, Work.FILL))
GRAPH = KINDS.index(Work.GRAPH.value)
GRAPH_MADE, GRAPH_READY, GRAPH_GONE = range(len(KINDS), len(KINDS) + 3)  # records that are no work, see `graphs`
ATTRIBUTED, ALL_WORDS, CAPTURED = 1, 2, 4  # flags of a record
OFF, ALL, GRAPHS_ONLY = 0, 1, 2  # what is recorded
_MAX_WORDS = 8
_NAME_BYTES = 4096
_GONE_PAST = 16  # names that the shim keeps
_BATCH = 1024


class Record(ctypes.Structure):
    """Mirrors ``record`` in ``launch_shim.c``."""

    _fields_ = (
        ("ready", ctypes.c_uint64),
        ("boundary", ctypes.c_uint64),
        ("handle", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("kind", ctypes.c_uint32),
        ("handle_type", ctypes.c_uint32),
        ("num_words", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("words", ctypes.c_uint64 * _MAX_WORDS),
    )


class Launch(NamedTuple):
    """One piece of device work.

    Attributes:
        boundary: Event in flight on the thread that submitted it, of a graph's kernel else the one that captured it; None for none.
        after: Without one in flight: the newest event that had been in flight before on any thread, None for none.
        kind: One of `KINDS`.
        name: Mangled name of a kernel, "" for copies, fills and graphs that were captured unseen, or where the driver does not tell.
        stream: The driver's handle.
        num_bytes: Of a copy or a fill.
        addresses: Outside all boundaries: arguments that may be device addresses; empty where the driver does not tell them.
    """

    boundary: int | None
    after: int | None
    kind: str
    name: str
    stream: int
    num_bytes: int
    addresses: tuple[int, ...]


class Counts(NamedTuple):
    """Since the process began: recorded, lost for want of room, entry points given out past the shim, and names of these."""

    recorded: int
    lost: int
    escaped: int
    gone_past: tuple[str, ...] = ()


class NotAttached(NamedTuple):
    """Why device work is not seen in this process; goes into the manifest."""

    reason: str


def recipe() -> builds.Recipe | builds.NotBuilt:
    """How the shim is built."""
    if not sys.platform.startswith("linux"):
        return builds.NotBuilt(f"preloading works on Linux; this is {sys.platform}")
    return builds.Recipe(
        name="launch_shim",
        says="the launch shim",
        source=builds.cuda_folder() / "launch_shim.c",
        flags=("-O2", "-std=gnu11", "-fvisibility=hidden", "-pthread"),
        libraries=("-ldl",),
    )


def preloaded(environment: Mapping[str, str], shim: Path) -> dict[str, str]:
    """An environment whose processes begin with the shim, before whatever was preloaded already."""
    others = environment.get(PRELOAD, "")
    return {**environment, PRELOAD: f"{shim}{':' if others else ''}{others}"}


def without_shim(value: str, shim: str) -> str:
    """What ``LD_PRELOAD`` was without us."""
    return ":".join(part for part in value.replace(" ", ":").split(":") if part and part != shim)


class Shim:
    """The shim of this process. Thread-safe.

    Args:
        library: The process's own symbols.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        # Without letting go of the interpreter lock: another thread would take it.
        set_boundary = ctypes.PyDLL(None).opguard_shim_boundary
        set_boundary.argtypes, set_boundary.restype = (ctypes.c_uint64,), ctypes.c_uint64
        self.set_boundary = set_boundary
        """``set_boundary(seq)`` says which event is in flight on the calling thread; returns the one before. Cost: 0.3 us from Python."""
        library.opguard_shim_take.argtypes = (ctypes.c_void_p, ctypes.c_int)
        library.opguard_shim_own.argtypes = (ctypes.c_uint64,)
        library.opguard_shim_name.argtypes = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t)
        self._records = (Record * _BATCH)()
        library.opguard_shim_gone_past.argtypes, library.opguard_shim_gone_past.restype = (ctypes.c_uint64,), ctypes.c_char_p
        self._text = ctypes.create_string_buffer(_NAME_BYTES)
        self._names: dict[tuple[int, int], str] = {}
        self.graphs = of_process

    def address(self, function: str) -> int:
        """Address of one of the shim's C functions, for callers in C."""
        return ctypes.cast(getattr(self._library, function), ctypes.c_void_p).value or 0

    def enable(self, level: int) -> None:
        """Record from now on: `ALL`, nothing (`OFF`), or only what graphs are made of, which is needed to know what they run later."""
        self._library.opguard_shim_enable(int(level))

    def own(self, handle: int) -> bool:
        """Leave out launches of a kernel of ours; False if too many are."""
        return bool(self._library.opguard_shim_own(handle))

    def take(self) -> list[Launch]:
        """What was recorded since the last call, oldest first; one caller at a time.

        Cost: about 2 us a record; the first one of a kernel asks the driver for its name.
        """
        launches: list[Launch] = []
        while True:
            count = self._library.opguard_shim_take(ctypes.byref(self._records), _BATCH)
            launches += [one for index in range(count) for one in self._launches(self._records[index])]
            if count < _BATCH:
                return launches

    def _launches(self, record: Record) -> list[Launch]:
        """The work that a record stands for: none for what only goes into a graph, all kernels of a graph that is known."""
        number = None if record.boundary == NO_BOUNDARY else record.boundary
        boundary, after = (number, None) if record.flags & ATTRIBUTED else (None, number)
        name = self.name(record.handle, record.handle_type) if record.handle and record.kind < GRAPH else ""
        graphs = self.graphs
        if record.flags & CAPTURED:
            graphs.captured(record.bytes, Node(record.kind, name, NO_EVENT if boundary is None else boundary))
        elif record.kind >= GRAPH_MADE:
            note_graph(graphs, record.kind, record.handle, record.bytes)
        elif record.kind != GRAPH or (nodes := graphs.launched(record.handle)) is None:
            one = Launch(boundary, after, KINDS[record.kind], name, record.stream, record.bytes, tuple(record.words[: record.num_words]))
            return [one]
        else:
            return [
                Launch(_event(boundary, node), after, KINDS[replayed_kind(node)], node.name, record.stream, 0, ())
                for node, count in nodes.items()
                for _ in range(count)
            ]
        return []

    def take_raw(self) -> npt.NDArray[np.void]:
        """As `take`, as structured rows like `Record`. Cost: one copy of 112 bytes a record, outside the interpreter lock."""
        import numpy as np

        parts, row = [], np.dtype(Record)
        while True:
            part = np.empty(_BATCH, row)
            count = self._library.opguard_shim_take(part.ctypes.data, _BATCH)
            parts.append(part[:count])
            if count < _BATCH:
                return np.concatenate(parts)

    def name(self, handle: int, handle_type: int) -> str:
        """Mangled name of what was launched, "" where the driver does not tell; asked once."""
        known = self._names.get((handle, handle_type))
        if known is None:
            found = self._library.opguard_shim_name(handle, handle_type, self._text, _NAME_BYTES)
            known = self._names[handle, handle_type] = self._text.value.decode("utf-8", errors="backslashreplace") if found else ""
        return known

    def counts(self) -> Counts:
        """How much was recorded, and how much was not."""
        counts = (ctypes.c_uint64 * 3)()
        self._library.opguard_shim_counts(counts)
        names = (self._library.opguard_shim_gone_past(number).decode("ascii", "replace") for number in range(min(counts[2], _GONE_PAST)))
        return Counts(counts[0], counts[1], counts[2], tuple(sorted({name for name in names if name})))


def note_graph(graphs: Graphs, kind: int, handle: int, number: int) -> None:
    """Tell what is known of graphs about a record that is no work."""
    if kind == GRAPH_MADE:
        graphs.made(handle, number)
    elif kind == GRAPH_READY:
        graphs.ready(handle, number)
    else:
        graphs.gone(handle)


def replayed_kind(node: Node) -> int:
    """How a replay of something captured is listed: kernels as part of a graph, copies and fills as what they are."""
    return GRAPH if node.kind < GRAPH else node.kind


def _event(boundary: int | None, node: Node) -> int | None:
    """Event of a replayed node: the one that replays, else the one that captured."""
    return node.seq if boundary is None and node.seq != NO_EVENT else boundary


def attached() -> Shim | NotAttached:
    """The shim of the calling process, if it began with one."""
    if not sys.platform.startswith("linux"):
        return NotAttached(f"preloading works on Linux; this is {sys.platform}")
    library = ctypes.CDLL(None)
    try:
        version = library.opguard_shim_version()
    except AttributeError:
        return NotAttached(_why_not())
    library.opguard_shim_record_bytes.restype = ctypes.c_size_t
    if version != VERSION or library.opguard_shim_record_bytes() != ctypes.sizeof(Record):
        return NotAttached(f"the process was started with a shim of another version ({version}, wanted {VERSION})")
    return Shim(library)


def _why_not() -> str:
    """What keeps a preload out of this very process."""
    executable = Path(sys.executable)
    try:
        mode = executable.stat().st_mode
    except OSError:
        mode = 0
    if os.geteuid() != os.getuid() or mode & (stat.S_ISUID | stat.S_ISGID):
        return f"{executable} is a set-user-id program: the loader drops preloads"
    if not _has_loader():
        return f"{executable} is linked statically: nothing can be preloaded"
    return "the process was not started with it"


def _has_loader() -> bool:
    """Whether a dynamic loader runs this process."""
    try:
        maps = Path("/proc/self/maps").read_text("utf-8", errors="replace")
    except OSError:
        return True
    return any(part in maps for part in ("/ld-", "/ld."))
