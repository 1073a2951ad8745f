"""Digests of many tensors that were asked for together: they come as rows of an array, and nothing is made for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.numpy_twin import Words
from opguard_core.probe.kinds import Unreadable

COLUMNS = 4  # mix64, value64, bag64, xor32


class Gathered:
    """Digests to come, by their place among what was asked for. Safe from any thread.

    Args:
        number: Of tensors.
        lost: What is said of one that its device does not deliver.
        wait: Waits a while for a ticket.

    Attributes:
        words: One row a tensor: mix64, value64, bag64, xor32.
        missing: How many have neither come nor been given up.
        undelivered: How many tickets of a range the backend has said nothing of.
        lost: Why some never will, by place.
        tickets: Of each place, once asked; a refused one has 0.
    """

    __slots__ = ("_here", "_lock", "_reason", "_wait", "lost", "missing", "tickets", "undelivered", "words")

    def __init__(self, number: int, lost: str, wait: Callable[[int, float], None]) -> None:
        self.words: Words = np.zeros((number, COLUMNS), dtype=np.uint64)
        self.missing = self.undelivered = number
        self.lost: dict[int, Unreadable] = {}
        self.tickets: Sequence[int] = ()
        self._here = np.zeros(number, dtype=np.bool_)
        self._reason, self._wait = Unreadable(lost), wait
        self._lock = threading.RLock()

    def arrive(self, places: Any, words: Words, lost: Any) -> None:
        """Keep what has come of some places, each once; a second delivery changes nothing.

        Args:
            places: Their numbers.
            words: A row for each.
            lost: For each, whether it will not come.
        """
        with self._lock:
            self.undelivered -= len(places)
            fresh = ~self._here[places]
            if not fresh.all():
                places, words, lost = places[fresh], words[fresh], lost[fresh]
            self._here[places] = True
            self.words[places] = words
            self.lost.update(dict.fromkeys(places[lost].tolist(), self._reason))
            self.missing -= len(places)  # last: who looks takes no lock

    def keep(self, place: int, found: Digests | Unreadable) -> None:
        """One has come."""
        with self._lock:
            if self._here[place]:
                return
            self._here[place] = True
            if isinstance(found, Unreadable):
                self.lost[place] = found
            else:
                self.words[place] = found[:COLUMNS]
            self.missing -= 1

    def lose(self, why: str) -> None:
        """Give up what is missing."""
        for place in np.flatnonzero(~self._here).tolist():
            self.keep(place, Unreadable(why))

    def wait(self, timeout_s: float) -> None:
        """Wait a while for the first that is missing."""
        missing = np.flatnonzero(~self._here)
        if len(missing):
            self._wait(self.tickets[int(missing[0])], timeout_s)
