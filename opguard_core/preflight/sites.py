"""From the boundaries of a trace to sites: names that survive a refactoring, and how often each one runs.

Reads what alignment reads (list operators taken apart, one event an element), so that a fused optimizer and a loop over
parameters have the same sites. What it cannot see: two boundaries that agree in everything a key holds are one site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from opguard_core.align.columns import MARKER, MUT, PHASES, Window
from opguard_core.align.loading import RankColumns
from opguard_core.align.vocabulary import squash
from opguard_core.ids import Marker
from opguard_core.plan.document import SiteKey
from opguard_core.trace.reader import Run

MAX_TEXT = 300
MAX_TENSORS = 12
_BACKWARD = PHASES.index("backward")
_ENDS = (str(Marker.OPTIMIZER_END), str(Marker.SCALER_SKIP))

Item = TypeVar("Item", bound=Hashable)


class Spot(NamedTuple):
    """Where a site was met, for people; not part of its name."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "no Python frame"


@dataclass
class SiteTable:
    """Numbers for site keys, common to all ranks of one run, and where each was first met."""

    keys: list[SiteKey] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)
    _numbers: dict[SiteKey, int] = field(default_factory=dict)

    def number(self, key: SiteKey, spot: Spot) -> int:
        """Number of a key, given out in order of first use."""
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.keys)
            self.keys.append(key)
            self.spots.append(spot)
        return found

    def find(self, key: SiteKey) -> int | None:
        """Number of a key that was met, else None."""
        return self._numbers.get(key)


class SiteReader:
    """Names the boundaries of one rank.

    Args:
        columns: The rank's trace.
        table: Where the numbers come from.
    """

    def __init__(self, columns: RankColumns, table: SiteTable) -> None:
        self._frames = columns.trace.frames
        self._vocabulary = columns.vocabulary
        self._table = table
        self._places: dict[int, tuple[str, str, Spot]] = {}
        self._tensors: dict[bytes, tuple[str, ...]] = {}
        self._known: dict[tuple[object, ...], int] = {}

    def numbers(self, window: Window) -> NDArray[np.int64]:
        """Site of each event of a window.

        Returns:
            int64[n], -1 for markers, gaps and state.

        Cost: about 2 us an event.
        """
        found = np.full(len(window), -1, np.int64)
        kept = np.flatnonzero(window.direction != MUT)  # a written argument has the tensor of its `in` slot
        tensors = np.stack([window.dtype[kept], window.shape[kept]], axis=1).astype(np.int32)
        first = np.searchsorted(kept, window.first)
        frame = np.where(window.user_frame >= 0, window.user_frame, window.library_frame)
        through = np.flatnonzero((window.phase == _BACKWARD) & (window.forward >= 0))
        frame[through] = frame[window.forward[through]]
        for event in np.flatnonzero(window.comparable).tolist():
            words = tensors[first[event] : first[event + 1]].tobytes()
            known = (int(window.op[event]), int(window.phase[event]), int(window.module[event]), int(frame[event]), words)
            number = self._known.get(known)
            if number is None:
                number = self._known[known] = self._name(*known[:4], words)
            found[event] = number
        return found

    def _name(self, op: int, phase: int, module: int, frame: int, words: bytes) -> int:
        texts = self._vocabulary.texts
        function, text, spot = self._place(frame)
        key = SiteKey(texts[op], PHASES[phase], texts[module], function, text, self._shapes(words))
        return self._table.number(key, spot)

    def _place(self, frame: int) -> tuple[str, str, Spot]:
        found = self._places.get(frame)
        if found is None:
            if frame < 0:
                found = ("", "", Spot("", 0))
            else:
                row = self._frames[frame]
                found = (row.function, squash(row.text)[:MAX_TEXT], Spot(row.file, row.line))
            self._places[frame] = found
        return found

    def _shapes(self, words: bytes) -> tuple[str, ...]:
        found = self._tensors.get(words)
        if found is None:
            texts = self._vocabulary.texts
            pairs = np.frombuffer(words, np.int32).reshape(-1, 2).tolist()
            named = [f"{texts[dtype]}[{texts[shape]}]" for dtype, shape in pairs]
            if len(named) > MAX_TENSORS:  # `cat` of hundreds: the first ones and how many there are
                named = [*named[:MAX_TENSORS], f"and {len(named) - MAX_TENSORS} more"]
            found = self._tensors[words] = tuple(named)
        return found


def ends_step(window: Window) -> bool:
    """Whether an update ended the window; what comes after the last update is no step."""
    texts = window.vocabulary.texts
    markers = np.flatnonzero(window.kind == MARKER).tolist()
    return any(is_step_end(texts[window.operator[at]], texts[window.args[at]]) for at in markers)


def is_step_end(operator: str, args: str) -> bool:
    """Whether a marker ends a step; an optimizer that does not count the steps says so."""
    return operator in _ENDS and "counted=False" not in args


def from_the_start(run: Run) -> bool:
    """Whether the first window of a run's trace is the program's first step, set-up included."""
    return run.manifest.steps is None or run.manifest.steps[0] == 0


@dataclass
class Tally(Generic[Item]):
    """How often things happen in a step, from the counts of some windows of one rank after the other.

    Attributes:
        every: Times in every step: the most of any window but the first, which has the set-up as well.
        first: Times in the first step on top of that.
    """

    every: Counter[Item] = field(default_factory=Counter)
    first: Counter[Item] = field(default_factory=Counter)

    def add_rank(self, windows: Iterable[Counter[Item]], *, starts: bool = True) -> None:
        """Take in one rank; over ranks the most of any counts.

        Args:
            windows: Counts of each window, in order.
            starts: Whether the first one is the first step of the program.
        """
        counts = list(windows)
        later = counts[1:] if starts else counts
        every: Counter[Item] = Counter()
        for window in later:
            every |= window
        self.every |= every
        if starts and counts:
            self.first |= counts[0] - every
