"""Device work of calls whose event has no number yet: held back until it has one, or turns out to have none.

A call outside the dispatcher gets its number when it ends (`engines.outside`); the shim knows it by a token until then.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opguard_core.intercept.shim import TOKENS

Array = npt.NDArray[Any]
MOST_KNOWN = 1 << 16  # ended calls whose work may still be on its way from the shim


class Seen(NamedTuple):
    """One batch of records as columns, in the order of submission: texts looked up, streams not numbered yet.

    Attributes:
        seq: int64, -1 without an event.
        after: int64, -1 with one, or before the first.
        kind: int32, positions in `KINDS`.
        kernel: int32, positions in the collector's names.
        stream: uint64, the driver's handle.
        num_bytes: uint64.
        touches: int8: -1 with an event, else 0 or 1; 0 or 1 with a token.
    """

    seq: Array
    after: Array
    kind: Array
    kernel: Array
    stream: Array
    num_bytes: Array
    touches: Array


class Tokens:
    """What became of the calls that tokens stand for. `became` may be called from any thread.

    Args:
        null: Number that stands for no event.
    """

    def __init__(self, null: int) -> None:
        self._null = null
        self._known: dict[int, tuple[int | None, int]] = {}
        self._held: Seen | None = None
        self._lock = threading.Lock()
        self._given_up = False
        self._forgotten = 0  # tokens below are of calls that ended long ago
        self.num_apart = 0  # pieces of work of calls that turned out to be no event

    def became(self, token: int, seq: int | None, after: int) -> None:
        """As `Collector.became`. Cost: 0.3 us."""
        with self._lock:
            self._known[token] = seq, after
            if len(self._known) > MOST_KNOWN:
                for old in sorted(self._known)[: MOST_KNOWN // 2]:
                    del self._known[old]
                    self._forgotten = old + 1

    def give_up(self) -> None:
        """The capture ends: what is still held is nobody's."""
        self._given_up = True

    def exchanged(self, seen: Seen | None) -> Seen | None:
        """A batch, and what was held before it, with the numbers of events; what has none yet is held."""
        if self._held is not None:
            seen = self._held if seen is None else Seen(*(np.concatenate(pair) for pair in zip(self._held, seen, strict=True)))
            self._held = None
        if seen is None:
            return None
        waiting = np.flatnonzero(seen.seq >= TOKENS)
        if not len(waiting):
            return seen
        seq, after, touches = seen.seq.copy(), seen.after.copy(), seen.touches.copy()
        left = np.zeros(len(seq), bool)
        for token in np.unique(seq[waiting]).tolist():
            rows = waiting[seen.seq[waiting] == token]
            with self._lock:
                found = self._known.get(token, (None, self._null) if self._given_up or token < self._forgotten else None)
            if found is None:
                left[rows] = True
            elif found[0] is None:
                seq[rows], after[rows] = self._null, max(found[1], self._null)
                self.num_apart += len(rows)
            else:
                seq[rows], touches[rows] = found[0], self._null
        made = seen._replace(seq=seq, after=after, touches=touches)
        if left.any():
            self._held = Seen(*(column[left] for column in made))
            made = Seen(*(column[~left] for column in made))
        return made
