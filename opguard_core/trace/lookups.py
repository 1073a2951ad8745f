"""Tables of a rank as look-ups: frames, stacks, storage lifetimes, launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from opguard_core.trace.columns import NO_NUMBER, Array, Columns, StringTables, empty_columns, to_columns
from opguard_core.trace.schema import FrameRow, LaunchRow, LifetimeRow


def _concatenate(parts: list[dict[str, Array]], table: str) -> dict[str, Array]:
    if not parts:
        return empty_columns(table)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class FrameTable(Sequence[FrameRow]):
    """Frames by id. ``columns`` holds them as numpy arrays (texts as object arrays, ``category`` as codes)."""

    def __init__(self, decoded: list[Any]) -> None:
        self.strings = StringTables()
        self.columns: Columns = _concatenate([to_columns("frames", part, self.strings) for part in decoded], "frames")

    def __len__(self) -> int:
        return len(self.columns["frame"])

    def __getitem__(self, frame: Any) -> Any:
        values = {name: self.columns[name][frame] for name in FrameRow._fields}
        values["category"] = self.strings["category"][int(values["category"])]
        return FrameRow(**{name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()})


class StackTable(Sequence[Array]):
    """Stacks by id, each an array of frame ids, outermost first.

    Attributes:
        offsets: int64[n + 1].
        values: uint32, frame ids of all stacks; stack ``i`` is ``values[offsets[i]:offsets[i + 1]]``.
    """

    def __init__(self, decoded: list[Any]) -> None:
        lists = [chunk for part in decoded for chunk in part.column("frames").chunks]
        lengths = [np.diff(chunk.offsets.to_numpy().astype(np.int64)) for chunk in lists]
        self.offsets: Array = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate([np.empty(0, np.int64), *lengths]))])
        self.values: Array = np.concatenate([np.empty(0, np.uint32), *(chunk.flatten().to_numpy() for chunk in lists)])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, stack: Any) -> Any:
        if not 0 <= stack < len(self):
            raise IndexError(f"no stack {stack}")
        return self.values[self.offsets[stack] : self.offsets[stack + 1]]


class LifetimeTable:
    """Storage lifetimes by storage serial. ``columns`` holds them as numpy arrays, in order of ``storage``."""

    def __init__(self, decoded: list[Any]) -> None:
        columns = _concatenate([to_columns("lifetimes", part, StringTables()) for part in decoded], "lifetimes")
        order = np.argsort(columns["storage"], kind="stable")
        self.columns: Columns = {name: column[order] for name, column in columns.items()}

    def __len__(self) -> int:
        return len(self.columns["storage"])

    def __iter__(self) -> Iterator[LifetimeRow]:
        return (self._row(index) for index in range(len(self)))

    def get(self, storage: int) -> LifetimeRow | None:
        """What is known of one storage; None if nothing is. Of several rows the last one written counts."""
        index = int(np.searchsorted(self.columns["storage"], storage, side="right")) - 1
        if index < 0 or int(self.columns["storage"][index]) != storage:
            return None
        return self._row(index)

    def _row(self, index: int) -> LifetimeRow:
        values = {name: self.columns[name][index].item() for name in LifetimeRow._fields}
        values["dead_seq"] = None if values["dead_seq"] == NO_NUMBER else values["dead_seq"]
        return LifetimeRow(**values)


class LaunchTable:
    """Device work of one rank; no rows where nothing watched it (the manifest's ``engines.launches`` says why).

    Attributes:
        columns: As numpy arrays, in order of ``seq``, ``after``, ``order``: ``seq``, ``after``, ``stream`` int64 and ``touches`` int64
            (0, 1), each `NO_NUMBER` for null; ``kind`` and ``kernel`` int32 codes; ``order`` uint32; ``count``, ``num_bytes`` uint64.
            Rows without an event come first. Rows that are alike were added up, whatever segments they came from.
        strings: Texts of ``kind`` and ``kernel``.
        num_unattributed: Rows without an event: the first ones.
        any_unwatched: Whether any work ran in no event: such rows, and replays of what an event had captured.
    """

    def __init__(self, decoded: list[Any]) -> None:
        self.strings = StringTables()
        self.columns: Columns = _added_up(_concatenate([to_columns("launches", part, self.strings) for part in decoded], "launches"))
        self.num_unattributed = int(np.searchsorted(self.columns["seq"], 0))
        self.any_unwatched = self.num_unattributed > 0 or bool(np.any(self.columns["after"] != NO_NUMBER))

    def __len__(self) -> int:
        return len(self.columns["seq"])

    def __iter__(self) -> Iterator[LaunchRow]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> LaunchRow:
        """One row, with texts."""
        values: dict[str, Any] = {name: self.columns[name][index].item() for name in LaunchRow._fields}
        for name in ("seq", "after", "stream", "touches"):
            values[name] = None if values[name] == NO_NUMBER else values[name]
        values["touches"] = None if values["touches"] is None else bool(values["touches"])
        return LaunchRow(**{**values, "kind": self.strings["kind"][values["kind"]], "kernel": self.strings["kernel"][values["kernel"]]})

    def of(self, seq: int) -> list[LaunchRow]:
        """What one event launched, in order of first sight. Cost: two binary searches, and its rows."""
        first, last = (int(np.searchsorted(self.columns["seq"], seq, side=side)) for side in ("left", "right"))
        return [self[index] for index in range(first, last)]


_ALIKE = ("seq", "after", "kind", "kernel", "stream", "touches")


def _added_up(columns: dict[str, Array]) -> dict[str, Array]:
    """Sort rows and join those that are alike but for ``order``, of which the lowest stays."""
    if not len(columns["seq"]):
        return columns
    by_likeness = np.lexsort([columns[name] for name in ("order", *reversed(_ALIKE))])
    columns = {name: column[by_likeness] for name, column in columns.items()}
    new = np.ones(len(by_likeness), bool)
    new[1:] = np.any([column[1:] != column[:-1] for name, column in columns.items() if name in _ALIKE], axis=0)
    starts = np.flatnonzero(new)
    sums = ("count", "num_bytes")
    joined = {name: np.add.reduceat(column, starts) if name in sums else column[starts] for name, column in columns.items()}
    in_order = np.lexsort([joined[name] for name in ("order", "after", "seq")])
    return {name: column[in_order] for name, column in joined.items()}
