"""Small hand-made rows and whole-trace comparison for tests of the trace format."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from opguard_core.trace.reader import RankTrace, Run
from opguard_core.trace.schema import EventRow, FrameRow, LifetimeRow, SlotRow


def event(seq: int, **changes: Any) -> EventRow:
    """An event row with unremarkable values."""
    row = EventRow(
        seq=seq,
        kind="operator",
        operator="aten.add.Tensor",
        t_host_ns=1000 + seq,
        t_device_ns=None,
        stream=None,
        thread="main",
        thread_index=0,
        collective_clock=0,
        window=0,
        microbatch=0,
        phase="forward",
        module="",
        node="",
        forward_seq=None,
        stack=None,
        user_frame=None,
        library_frame=None,
        args="",
        rng_stream="",
        rng_before=None,
        grad_enabled=True,
    )
    return row._replace(**changes)


def slot(seq: int, path: str = "out.0", **changes: Any) -> SlotRow:
    """A slot row with unremarkable values that depend on ``seq``."""
    row = SlotRow(
        seq=seq,
        slot=path,
        direction=path.split(".")[0],
        status="probed",
        dtype="float32",
        shape="2,2",
        strides="2,1",
        device="cpu",
        storage=seq % 7,
        extent_lo=0,
        extent_hi=16,
        version=seq % 3,
        nbytes=16,
        mix64=(seq + 1) * 0x9E3779B97F4A7C15 % 2**64,
        value64=seq,
        bag64=2**64 - 1 - seq,
        xor32=seq % 2**32,
        trivial=False,
        name="",
    )
    return row._replace(**changes)


def frame(number: int, **changes: Any) -> FrameRow:
    """A frame row with unremarkable values."""
    return FrameRow(number, "train.py", "user", "main", number + 1, number + 1, 4, 9, 2 * number, "a + b", "c = a + b", "")._replace(
        **changes
    )


class Rows(NamedTuple):
    """Everything a rank's trace says, as plain rows."""

    events: list[EventRow]
    slots: list[list[SlotRow]]
    frames: list[FrameRow]
    stacks: list[list[int]]
    lifetimes: list[LifetimeRow]


def rows_of(trace: RankTrace) -> Rows:
    """Read a rank's whole prefix."""
    events, slots = [], []
    for window in trace.iter_windows():
        events += [window.event(index) for index in range(len(window))]
        slots += [window.slots_of(index) for index in range(len(window))]
    stacks = [members.tolist() for members in trace.stacks]
    return Rows(events, slots, list(trace.frames), stacks, list(trace.lifetimes))


def read_rank(run: Path, rank: int = 0) -> Rows:
    """Open a run and read one rank's whole prefix."""
    return rows_of(Run.open(run).ranks[rank])


def is_prefix(part: Rows, whole: Rows) -> bool:
    """Whether the events and slots of ``part`` are the first ones of ``whole``, and its frames and stacks too."""
    return all(mine == theirs[: len(mine)] for mine, theirs in zip(part[:4], whole[:4], strict=True))


class Content:
    """As `Rows`, kept as columns: for tests that read thousands of damaged traces."""

    def __init__(self, trace: RankTrace) -> None:
        windows = list(trace.iter_windows())
        self.num_events = sum(len(window) for window in windows)
        self.columns = {
            (kind, name): np.concatenate([getattr(window, kind)[name] for window in windows])
            for kind in ("events", "slots")
            for name in (getattr(windows[0], kind) if windows else ())
        }
        # Codes are given in order of first appearance, so those of a prefix are the same.
        self.strings = {name: list(table) for name, table in trace.strings.items()}
        self.frames = list(trace.frames)
        self.stacks = [members.tolist() for members in trace.stacks]
        self.lifetimes = trace.lifetimes.columns["storage"].tolist()
        self.launches = list(trace.launches)

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Content)
        return (
            self.num_events == other.num_events
            and len(self.lifetimes) == len(other.lifetimes)
            and self.launches == other.launches
            and self.is_prefix_of(other)
        )

    __hash__ = None  # type: ignore[assignment]

    def is_prefix_of(self, whole: Content) -> bool:
        """Whether the events and slots here are the first ones of ``whole``, and frames and stacks too."""
        return (
            all(np.array_equal(column, whole.columns[key][: len(column)]) for key, column in self.columns.items())
            and all(values == whole.strings[name][: len(values)] for name, values in self.strings.items())
            and self.frames == whole.frames[: len(self.frames)]
            and self.stacks == whole.stacks[: len(self.stacks)]
        )


def reseal(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest and seal it again, as whoever forges one would."""
    record = orjson.loads(path.read_bytes())
    del record["seal"]
    change(record)
    record["seal"] = hashlib.sha256(orjson.dumps(record)).hexdigest()
    path.write_bytes(orjson.dumps(record))
