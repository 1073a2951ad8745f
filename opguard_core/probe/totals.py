"""The sum of the digests of many tensors, in any order: its own digests are known once theirs are.

mix64   = M( F * (n + 1) + sum over the n tensors of M(their mix64) ), and so value64 and bag64; xor32 is the XOR of theirs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from opguard_core.fingerprint.constants import finish
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.numpy_twin import Words, mix_lanes
from opguard_core.probe.gathered import Gathered
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import Known, Outcome, Promise


class Part(NamedTuple):
    """Some of what was gathered.

    Attributes:
        gathered: What was asked for together.
        places: In it.
        order: Where these tensors stand among all that are summed up.
    """

    gathered: Gathered
    places: Any
    order: Any


class Sum:
    """Adds digests up, wherever they are: here, as rows of an array, on their way."""

    def __init__(self) -> None:
        self.number = self.nbytes = 0
        self._rows: list[Words] = []
        self._single: list[tuple[int, Known]] = []
        self._parts: list[Part] = []

    def add(self, order: int, known: Known) -> None:
        """Count one tensor in."""
        self.number += 1
        self.nbytes += known.nbytes
        self._single.append((order, known))

    def add_rows(self, words: Words, nbytes: int) -> None:
        """Count tensors in whose digests are known: a row each, of mix64, value64, bag64, xor32."""
        self.number += len(words)
        self.nbytes += nbytes
        self._rows.append(words)

    def add_part(self, part: Part, nbytes: int) -> None:
        """Count tensors in that were asked for together."""
        self.number += len(part.places)
        self.nbytes += nbytes
        self._parts.append(part)

    def known(self, unreadable: Callable[[Unreadable], Unreadable]) -> Known:
        """The digests of the whole, or their promise.

        Args:
            unreadable: What the whole is if one tensor cannot be read after all.
        """
        digests = [known for _, known in self._single if not isinstance(known, Promise)]
        single = [(order, known) for order, known in self._single if isinstance(known, Promise)]
        rows = [*self._rows, _rows_of(digests)] if digests else self._rows
        if not single and not self._parts:
            return _summed(rows, self.number, self.nbytes)
        return Total(rows, single, self._parts, self.number, self.nbytes, unreadable)


class Total(Promise):
    """The digests of a sum of which something is still on its way; made by `Sum.known`."""

    __slots__ = ("_found", "_number", "_unreadable")

    def __init__(
        self,
        rows: Sequence[Words],
        single: Sequence[tuple[int, Promise]],
        parts: Sequence[Part],
        number: int,
        nbytes: int,
        unreadable: Callable[[Unreadable], Unreadable],
    ) -> None:
        super().__init__(None, nbytes, 0)
        self._number, self._unreadable = number, unreadable
        # In one place: another thread lets go of them all at once.
        self._found = tuple(rows), tuple(single), tuple(parts)

    def look(self) -> Outcome | None:
        """As `Promise.look`: works itself out as soon as it can. Cost: some numpy calls, once, whatever the number of tensors."""
        rows, single, parts = self._found  # before the result is looked at: another thread sets that first and then lets go of these
        if self.result is not None:
            return self.result
        if any(part.gathered.missing for part in parts):
            return None
        lost: list[tuple[int, Unreadable]] = []
        digests: list[Digests] = []
        for order, promise in single:
            one = promise.look()
            if one is None:
                return None
            if isinstance(one, Digests):
                digests.append(one)
            else:
                lost.append((order, one if isinstance(one, Unreadable) else Unreadable("nothing there")))
        for part in parts:
            if part.gathered.lost:
                at = zip(part.places.tolist(), part.order.tolist(), strict=True)
                lost += [(order, part.gathered.lost[place]) for place, order in at if place in part.gathered.lost]
        if lost:
            self.keep(self._unreadable(min(lost)[1]))
        else:
            more = [part.gathered.words[part.places] for part in parts]
            self.keep(_summed([*rows, *more, _rows_of(digests)], self._number, self.nbytes))
        self._found = (), (), ()
        return self.result

    def wait(self, timeout_s: float) -> None:
        """Wait a while for something that is missing."""
        _, single, parts = self._found
        for gathered in (part.gathered for part in parts if part.gathered.missing):
            return gathered.wait(timeout_s)
        for promise in (promise for _, promise in single if promise.look() is None):
            return promise.wait(timeout_s)

    def lose(self, why: str) -> None:
        """Give up what is missing."""
        _, single, parts = self._found
        for part in parts:
            part.gathered.lose(why)
        for _, promise in single:
            if promise.look() is None:
                promise.lose(why)


def _rows_of(digests: Sequence[Digests]) -> Words:
    return np.array([one[:4] for one in digests], dtype=np.uint64).reshape(-1, 4)


def _summed(rows: Sequence[Words], number: int, nbytes: int) -> Digests:
    words = np.concatenate(rows) if len(rows) != 1 else rows[0]
    sums = mix_lanes(np.ascontiguousarray(words[:, :3])).sum(axis=0, dtype=np.uint64).tolist()
    mix64, value64, bag64 = (finish(total, number) for total in sums)
    return Digests(mix64, value64, bag64, int(np.bitwise_xor.reduce(words[:, 3])), False, nbytes)
