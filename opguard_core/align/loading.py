"""From the windows a trace reader yields to columns whose numbers mean the same on both sides.

The reader has checked files; what is checked here is meaning: closed vocabularies, frame and stack numbers, extents.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.columns import DIRECTIONS, KINDS, PHASES, STATUSES, Ints, Window
from opguard_core.align.foreach import split_lists
from opguard_core.align.vocabulary import Vocabulary, squash
from opguard_core.errors import TraceFormatError
from opguard_core.ids import Kind
from opguard_core.trace.columns import Columns
from opguard_core.trace.problems import refusal
from opguard_core.trace.reader import RankTrace
from opguard_core.trace.window import WindowTable

_CLOSED = {"kind": KINDS, "phase": PHASES, "direction": DIRECTIONS, "status": STATUSES}
_MAX_BYTE = 1 << 62


class RankColumns:
    """Windows of one rank of one side, translated.

    Args:
        trace: The rank's trace.
        vocabulary: Shared by everything that is compared.
    """

    def __init__(self, trace: RankTrace, vocabulary: Vocabulary) -> None:
        self.trace = trace
        self.vocabulary = vocabulary
        self._translations: dict[str, NDArray[np.int32]] = {}

    def iter_windows(self) -> Iterator[tuple[WindowTable, Window]]:
        """Yield each window as the reader gives it and as columns.

        Raises:
            TraceFormatError: A value lies outside its vocabulary, table or range.
        """
        for table in map(without_named, self.trace.iter_windows()):
            yield table, self.translate(table)

    def window(self, number: int) -> Window:
        """One window again, by number.

        Raises:
            TraceFormatError: As `iter_windows`, or the trace does not hold it any more.

        Cost: reads the trace up to it.
        """
        for table in self.trace.iter_windows():
            if table.window == number:
                return self.translate(table)
        raise refusal(TraceFormatError, "Window gone", path=self.trace.path, expected=f"window {number}", found="none")

    def translate(self, table: WindowTable) -> Window:
        """Columns of one window, list operators taken apart."""
        return split_lists(self._whole(without_named(table)))

    def _whole(self, table: WindowTable) -> Window:
        events, slots = table.events, table.slots
        seq = events["seq"].astype(np.int64)
        frames, library_frames, stacks = (events[name].astype(np.int64) for name in ("user_frame", "library_frame", "stack"))
        self._check_range("frame", frames, len(self.trace.frames))
        self._check_range("frame", library_frames, len(self.trace.frames))
        self._check_range("stack", stacks, len(self.trace.stacks))
        lo, hi, nbytes = (self._bytes(slots, name) for name in ("extent_lo", "extent_hi", "nbytes"))
        if (hi < lo).any():
            raise self._bad("Extent ends before it begins", "extent_lo <= extent_hi", int(np.argmax(hi < lo)))
        operator = self._texts(events, "operator", table)
        forward_seq = events["forward_seq"].astype(np.int64)
        return Window(
            number=table.window,
            seq=seq,
            kind=self._closed(events, "kind", table),
            operator=operator,
            op=self.vocabulary.folded_all(operator),
            phase=self._closed(events, "phase", table),
            lane=self._texts(events, "thread", table),
            clock=events["collective_clock"].astype(np.int64),
            microbatch=events["microbatch"].astype(np.int64),
            module=self._texts(events, "module", table),
            node=self._texts(events, "node", table),
            args=self._texts(events, "args", table),
            rng=self._texts(events, "rng_stream", table),
            rng_before=np.where(events["rng_before_known"], events["rng_before"], 0).astype(np.uint64),
            forward=_rows_of(seq, forward_seq),
            forward_seq=forward_seq,
            stack=stacks,
            user_frame=frames,
            library_frame=library_frames,
            site=_look_up(self.frame_sites, frames),
            library_site=_look_up(self.frame_sites, library_frames),
            path=_look_up(self.stack_paths, stacks),
            first=table.slot_start.astype(np.int64),
            event=np.repeat(np.arange(len(seq), dtype=np.int32), np.diff(table.slot_start)),
            slot=self._texts(slots, "slot", table),
            dtype=self._texts(slots, "dtype", table),
            shape=self._texts(slots, "shape", table),
            tensor=self._texts(slots, "name", table),
            direction=self._closed(slots, "direction", table),
            status=self._closed(slots, "status", table),
            storage=slots["storage"].astype(np.int64),
            lo=lo,
            hi=hi,
            version=slots["version"].astype(np.int64),
            nbytes=nbytes,
            mix=slots["mix64"],
            value=slots["value64"],
            bag=slots["bag64"],
            trivial=slots["trivial"],
            vocabulary=self.vocabulary,
            trusts=self.trace.manifest.mode == "trusted",
            rank=self.trace.manifest.rank,
        )

    @property
    def frame_sites(self) -> NDArray[np.int32]:
        """Place number of each frame: function and expression, independent of file, line and white space."""
        if "frames" not in self._translations:
            columns = self.trace.frames.columns
            self._translations["frames"] = self.vocabulary.numbers(
                [
                    f"{function}\0{squash(text) or line}"
                    for function, text, line in zip(columns["function"], columns["text"], columns["line"], strict=True)
                ]
            )
        return self._translations["frames"]

    @property
    def stack_paths(self) -> NDArray[np.int32]:
        """Number of each stack's whole call path."""
        if "stacks" not in self._translations:
            sites = self.frame_sites
            stacks = self.trace.stacks
            self._translations["stacks"] = self.vocabulary.numbers(
                ["path:" + ",".join(map(str, sites[stacks[number]].tolist())) for number in range(len(stacks))]
            )
        return self._translations["stacks"]

    def _texts(self, columns: Columns, name: str, table: WindowTable) -> NDArray[np.int32]:
        strings = table.strings[name]
        known = self._translations.get(name, np.zeros(0, np.int32))
        if len(known) < len(strings):
            added = self.vocabulary.numbers([strings[code] for code in range(len(known), len(strings))])
            known = self._translations[name] = np.concatenate([known, added])
        codes = columns[name]
        self._check_range(name, codes.astype(np.int64), len(known))
        return known[codes]

    def _closed(self, columns: Columns, name: str, table: WindowTable) -> NDArray[np.int8]:
        words = _CLOSED[name]
        strings = table.strings[name]
        codes = columns[name]
        self._check_range(name, codes.astype(np.int64), len(strings))
        order = {word: at for at, word in enumerate(words)}
        table_codes = np.array([order.get(text, -1) for text in strings] or [-1], np.int8)
        found: NDArray[np.int8] = table_codes[codes]
        if len(found) and int(found.min()) < 0:
            raise self._bad(f"Unknown {name}", " or ".join(words), strings[int(codes[found < 0].min())])
        return found

    def _bytes(self, slots: Columns, name: str) -> Ints:
        column = slots[name]
        if len(column) and int(column.max()) > _MAX_BYTE:
            raise self._bad(f"Impossible {name}", f"at most {_MAX_BYTE}", int(column.max()))
        return column.astype(np.int64)

    def _check_range(self, what: str, numbers: Ints, count: int) -> None:
        if len(numbers) and (int(numbers.max()) >= count or int(numbers.min()) < -1):
            raise self._bad(f"Unknown {what}", f"-1 to {count - 1}", int(numbers.max()))

    def _bad(self, what: str, expected: str, found: object) -> TraceFormatError:
        return refusal(TraceFormatError, what, path=Path(self.trace.path), expected=expected, found=found)


def without_named(table: WindowTable) -> WindowTable:
    """A window without its semantic events: they only read, and operators are judged as if nobody had looked. Cost: nothing without any."""
    code = table.strings["kind"].code(Kind.SEMANTIC)
    kept = table.events["kind"] != code
    if code < 0 or kept.all():
        return table
    sizes = np.diff(table.slot_start)
    slots = np.repeat(kept, sizes)
    return replace(
        table,
        events={name: column[kept] for name, column in table.events.items()},
        slots={name: column[slots] for name, column in table.slots.items()},
        slot_start=np.concatenate([np.zeros(1, table.slot_start.dtype), np.cumsum(sizes[kept])]),
    )


def _look_up(table: NDArray[np.int32], numbers: Ints) -> NDArray[np.int32]:
    found = np.zeros(len(numbers), np.int32)
    good = numbers >= 0
    found[good] = table[numbers[good]]
    return found


def _rows_of(seq: Ints, wanted: Ints) -> Ints:
    """Row of each wanted event number in a rising column; -1 where it is absent or not before its own row."""
    if not len(seq):
        return np.zeros(0, np.int64)
    at = np.minimum(np.searchsorted(seq, wanted), len(seq) - 1)
    return np.where((seq[at] == wanted) & (at < np.arange(len(seq))), at, -1)
