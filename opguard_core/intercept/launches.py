"""Collects what the shim recorded and hands it to the trace as columns, on a thread of its own.

    shim's ring -> `Collector` (every 20 ms) -> table `launches` of the trace

The training's threads pay for the record in the shim and for nothing here. A process that forks has no such thread while it does;
a forked child collects nothing. Knows of streams and memory only what it is given.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from opguard_core.intercept import shim as of_shim
from opguard_core.intercept.graphs import NO_EVENT, Node
from opguard_core.intercept.shim import ALL_WORDS, ATTRIBUTED, CAPTURED, GRAPH, GRAPH_MADE, KINDS, NO_BOUNDARY, TOKENS, Shim
from opguard_core.intercept.tokens import Seen, Tokens
from opguard_core.trace.flush import block_signals
from opguard_core.trace.forks import stop_around_forks
from opguard_core.trace.schema import LAUNCHES

Array = npt.NDArray[Any]

PERIOD_S = 0.02  # the ring holds 2^15 records: one and a half million a second
NAME_TRIES = 3  # a driver may not tell a kernel's name while it is loading it
OPEN_BOUNDARIES = 256  # events whose later launches go on counting where the ones before ended
_NULL = -1
_NO_SEQ = np.uint64(NO_BOUNDARY)


class Grouped(NamedTuple):
    """As `Seen`, alike ones counted; ``order`` is the position among the groups of one event."""

    seen: Seen
    order: Array
    counts: Array


def grouped(seen: Seen) -> Grouped:
    """Count launches that are alike, in order of first sight within their event.

    Cost: two sorts, about 0.2 us a record.
    """
    by_likeness = np.lexsort((seen.touches, seen.stream, seen.kernel, seen.kind, seen.after, seen.seq))
    columns = [column[by_likeness] for column in seen]
    new = np.ones(len(by_likeness), bool)
    keys = [column for name, column in zip(Seen._fields, columns, strict=True) if name != "num_bytes"]
    new[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    starts = np.flatnonzero(new)
    count = np.diff(np.append(starts, len(by_likeness))).astype(np.uint64)
    num_bytes = np.add.reduceat(columns[Seen._fields.index("num_bytes")], starts) if len(starts) else np.empty(0, np.uint64)
    kept = Seen(*(column[starts] for column in columns))._replace(num_bytes=num_bytes)
    in_order = np.lexsort((by_likeness[starts], kept.after, kept.seq))  # the sort is stable: the first of a group came first
    kept = Seen(*(column[in_order] for column in kept))
    new_event = np.ones(len(in_order), bool)
    new_event[1:] = (kept.seq[1:] != kept.seq[:-1]) | (kept.after[1:] != kept.after[:-1])
    begins = np.maximum.accumulate(np.where(new_event, np.arange(len(in_order)), 0))
    return Grouped(kept, (np.arange(len(in_order)) - begins).astype(np.int64), count[in_order])


class Collector:
    """Takes records until it is stopped.

    Args:
        shim: Of this process.
        hand_over: Receives record batches of `schema.LAUNCHES`; never raises.
        stream_number: Number of a stream by its handle, None for one that no event ran on. Asked a period after the launch.
        touches: Which of some addresses (uint64) may lie inside memory of the program; called on the collecting thread.
    """

    def __init__(
        self,
        shim: Shim,
        hand_over: Callable[[Any], None],
        *,
        stream_number: Callable[[int], int | None],
        touches: Callable[[Array], npt.NDArray[np.bool_]],
    ) -> None:
        self._shim, self._hand_over = shim, hand_over
        self._stream_number, self._touches = stream_number, touches
        self._names: list[str] = [""]
        self._positions: dict[str, int] = {"": 0}
        self._codes: dict[tuple[int, int], int] = {}
        self._tries: dict[tuple[int, int], int] = {}
        self._waiting: Seen | None = None  # taken in the period before: their events have ended by now, mostly
        self._next_order: dict[tuple[int, int], int] = {}
        self._tokens = Tokens(_NULL)
        self._recording = True
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._num_rows = self._num_notes = self._num_apart = 0
        self._failure = ""

    @property
    def shim(self) -> Shim:
        """Of this process."""
        return self._shim

    @property
    def _level(self) -> int:
        return of_shim.ALL if self._recording else of_shim.GRAPHS_ONLY

    def start(self) -> None:
        """Record from now on."""
        self._shim.enable(self._level)
        self._run_thread()
        _live.add(self)

    def follow(self, recording: bool) -> None:
        """Record, or no more: steps outside the window have no events to belong to."""
        if recording != self._recording and not self._stopping.is_set():
            self._recording = recording
            self._shim.enable(self._level)

    def stop(self) -> None:
        """Record no more, and hand over what there is."""
        if os.getpid() != self._pid:
            return
        self._shim.enable(of_shim.OFF)
        self._end_thread()
        _live.discard(self)
        self._collect()
        while self._waiting is not None and len(self._waiting.seq) and not self._failure:
            self._collect()
        self._tokens.give_up()
        self._collect()

    def became(self, token: int, seq: int | None, after: int) -> None:
        """The call that a token stood for has ended.

        Args:
            token: What the shim had in flight.
            seq: Number of its event; None: it has none, and its device work is nobody's.
            after: Newest event before its end.
        """
        self._tokens.became(token, seq, after)

    def report(self) -> dict[str, Any]:
        """What the manifest says: recorded, lost for want of room, entry points given out past the shim, kernels without a name."""
        counts = self._shim.counts()
        unnamed = sum(1 for code in self._codes.values() if not self._names[code])
        report: dict[str, Any] = {
            "active": not self._failure,
            "recorded": counts.recorded - self._num_notes,
            "lost": counts.lost,
            "escaped": counts.escaped,
            "gone_past": list(counts.gone_past),
            "unattributed": self._num_apart + self._tokens.num_apart,
            "rows": self._num_rows,
            "kernels": len(self._codes),
            "unnamed": unnamed,
            "replays": self._shim.graphs.replays,
            "replays_unknown": self._shim.graphs.unknown,
        }
        return {**report, "reason": self._failure} if self._failure else report

    def _run_thread(self) -> None:
        self._stopping.clear()
        # A daemon, so that a session that is never stopped cannot keep the interpreter alive.
        self._thread = threading.Thread(target=self._run, name="opguard-launches", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the system allows no more threads
            self._thread, self._failure = None, f"no thread to collect launches: {error}"
            self._shim.enable(of_shim.OFF)

    def _end_thread(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        block_signals()
        while not self._stopping.wait(PERIOD_S):
            self._collect()

    def _collect(self) -> None:
        if self._failure:
            return
        try:
            before, self._waiting = self._waiting, self._seen(self._shim.take_raw())
            ready = self._tokens.exchanged(before)
            if ready is not None and len(ready.seq):
                self._hand_over(self._batch(grouped(ready)))
        except (ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError, MemoryError, pa.ArrowException) as error:
            # The step guard of this thread: the table ends here, and says why.
            self._failure = f"{type(error).__name__}: {error}"
            self._shim.enable(of_shim.OFF)

    def _seen(self, records: Array) -> Seen:
        """Texts and memory are looked up now, while what was launched is still there."""
        number = np.where(records["boundary"] == _NO_SEQ, np.uint64(1 << 63), records["boundary"]).astype(np.int64)
        number = np.where(number < 0, _NULL, number)
        attributed = (records["flags"] & ATTRIBUTED).astype(bool)
        self._num_apart += int(len(records) - attributed.sum())
        seen = Seen(
            np.where(attributed, number, _NULL),
            np.where(attributed, _NULL, number),
            records["kind"].astype(np.int32),
            self._kernels(records),
            records["stream"].astype(np.uint64),
            records["bytes"].astype(np.uint64),
            self._touching(records, attributed & (number < TOKENS)),
        )
        special = np.flatnonzero((records["kind"] == GRAPH) | (records["kind"] >= GRAPH_MADE) | ((records["flags"] & CAPTURED) != 0))
        return self._replayed(seen, records, special) if len(special) else seen

    def _replayed(self, seen: Seen, records: Array, special: Array) -> Seen:
        """A batch without what was only captured, and with the kernels of a graph in place of its launch where they are known.

        A replay belongs to the event in flight, else its kernels to those that captured them; ``after`` says when it was then, since
        nothing looks at what it wrote.

        Cost: 2 us a record of a capture or a launch of a graph, and some rows for each kernel of one.
        """
        graphs = self._shim.graphs
        parts: list[Seen] = []
        start = 0
        for at in special.tolist():
            parts.append(Seen(*(column[start:at] for column in seen)))
            start = at + 1
            kind, seq = int(seen.kind[at]), int(seen.seq[at])
            handle, number = int(records["handle"][at]), int(records["bytes"][at])
            if records["flags"][at] & CAPTURED:
                graphs.captured(number, Node(kind, self._names[seen.kernel[at]], NO_EVENT if seq == _NULL else seq))
                self._left_out(seq)
            elif kind >= GRAPH_MADE:
                of_shim.note_graph(graphs, kind, handle, number)
                self._left_out(seq)
            elif (nodes := graphs.launched(handle)) is None:
                parts.append(Seen(*(column[at : at + 1] for column in seen)))
            else:
                rows = [node for node, count in nodes.items() for _ in range(count)]
                one = Seen(*(np.repeat(column[at : at + 1], len(rows)) for column in seen))
                own = np.array([node.seq for node in rows], np.int64)
                parts.append(
                    one._replace(
                        seq=own if seq == _NULL else one.seq,
                        kind=np.array([of_shim.replayed_kind(node) for node in rows], np.int32),
                        kernel=np.array([self._position(node.name) for node in rows], np.int32),
                        num_bytes=np.zeros(len(rows), np.uint64),
                    )
                )
        parts.append(Seen(*(column[start:] for column in seen)))
        return Seen(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _left_out(self, seq: int) -> None:
        """A record is no work that ran."""
        self._num_notes += 1
        self._num_apart -= seq == _NULL

    def _kernels(self, records: Array) -> Array:
        """Positions of names, one look-up a handle that is new."""
        codes = np.zeros(len(records), np.int32)
        named = (records["handle"] != 0) & (records["kind"] < GRAPH)
        if not named.any():
            return codes
        handles = np.stack([records["handle"][named], records["handle_type"][named].astype(np.uint64)])
        alike, inverse = np.unique(handles, axis=1, return_inverse=True)
        codes[named] = np.array([self._code(int(handle), int(kind)) for handle, kind in alike.T], np.int32)[inverse.reshape(-1)]
        return codes

    def _code(self, handle: int, kind: int) -> int:
        code = self._codes.get((handle, kind))
        if code is None or (code == 0 and self._tries[handle, kind] < NAME_TRIES):
            self._tries[handle, kind] = self._tries.get((handle, kind), 0) + 1
            name = self._shim.name(handle, kind)
            code = self._codes[handle, kind] = self._position(name)
        return code

    def _position(self, name: str) -> int:
        """Of a name among all that were seen."""
        if name not in self._positions:
            self._positions[name] = len(self._names)
            self._names.append(name)
        return self._positions[name]

    def _touching(self, records: Array, attributed: Array) -> Array:
        """Whether launches without an event got an address inside memory of the program; what cannot be told counts as if."""
        touching = np.full(len(records), _NULL, np.int8)
        apart = np.flatnonzero(~attributed)
        if not len(apart):
            return touching
        rows = records[apart]
        held = np.arange(rows["words"].shape[1]) < rows["num_words"][:, None]
        inside = np.zeros(held.shape, bool)
        if held.any():
            words, inverse = np.unique(rows["words"][held], return_inverse=True)
            inside[held] = self._touches(words)[inverse]
        known = (rows["flags"] & ALL_WORDS).astype(bool)
        touching[apart] = inside.any(axis=1) | ~known
        return touching

    def _batch(self, groups: Grouped) -> Any:
        seen = groups.seen
        handles, inverse = np.unique(seen.stream, return_inverse=True)
        numbers = np.array([_or_null(self._stream_number(int(handle))) for handle in handles], np.int64)[inverse]
        self._num_rows += len(seen.seq)
        columns = {
            "seq": _nullable(seen.seq),
            "after": _nullable(seen.after),
            "order": pa.array(self._orders(groups).astype(np.uint32)),
            "kind": _texts(seen.kind, KINDS),
            "kernel": _texts(seen.kernel, self._names),
            "stream": _nullable(numbers),
            "count": pa.array(groups.counts),
            "num_bytes": pa.array(seen.num_bytes),
            "touches": pa.array(seen.touches == 1, mask=seen.touches == _NULL),
        }
        return pa.record_batch([columns[field.name] for field in LAUNCHES], schema=LAUNCHES)

    def _orders(self, groups: Grouped) -> Array:
        """Positions within each event, going on where a batch before has left it."""
        seen, known = groups.seen, self._next_order
        begins = np.flatnonzero(groups.order == 0)
        lengths = np.diff(np.append(begins, len(groups.order)))
        added = []
        for seq, after, length in zip(seen.seq[begins].tolist(), seen.after[begins].tolist(), lengths.tolist(), strict=True):
            first = known.pop((seq, after), 0)
            known[seq, after] = first + length  # again, as the newest
            added.append(first)
        for event in list(known)[: max(0, len(known) - OPEN_BOUNDARIES)]:
            del known[event]
        return groups.order + np.repeat(np.array(added, np.int64), lengths)

    def _before_fork(self) -> None:
        self._end_thread()

    def _after_fork_in_parent(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._run_thread()

    def _after_fork_in_child(self) -> None:
        _live.discard(self)


def _or_null(number: int | None) -> int:
    return _NULL if number is None else number


def _nullable(values: Array) -> Any:
    return pa.array(values, mask=values == _NULL)


def _texts(codes: Array, texts: Any) -> Any:
    """A dictionary column of the texts in use, in order of first sight."""
    used, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    ordered = [texts[int(code)] for code in used[np.argsort(first)]]
    return pa.DictionaryArray.from_arrays(pa.array(rank[inverse].astype(np.int32)), pa.array(ordered, pa.string()))


_live: weakref.WeakSet[Collector] = weakref.WeakSet()


stop_around_forks(_live)
