"""What could not be seen, as data: counted by reason, written into the rank manifest at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

EXAMPLES = 5


class Coverage:
    """Counts of gaps by reason.

    ``touches_state`` in a report means that some of them involved a parameter, gradient, buffer or optimizer state, or
    bytes that an observed operator read: such a gap makes ``identical`` impossible. ``first_seq`` is the event from which on
    something may have gone unseen for that reason: what lies before it is untouched by the gap.

    Args:
        oldest_open: Number of the oldest event in flight, or of the next one.
    """

    def __init__(self, oldest_open: Callable[[], int]) -> None:
        self._oldest_open = oldest_open
        self._gaps: dict[str, dict[str, Any]] = {}
        self._notes: dict[str, Any] = {}
        self._lock = threading.RLock()

    def gap(self, reason: str, detail: str, *, touches_state: bool, seq: int | None = None) -> None:
        """Count one thing that could not be seen.

        Args:
            reason: A slug of a closed set.
            detail: What it was: an operator, a type, a thread.
            touches_state: Whether it fed a parameter or other observed storage.
            seq: The event it belongs to; None for the oldest in flight.
        """
        if seq is None:
            seq = self._oldest_open()
        with self._lock:
            entry = self._gaps.setdefault(reason, {"count": 0, "touches_state": False, "examples": [], "first_seq": seq})
            entry["count"] += 1
            entry["first_seq"] = min(entry["first_seq"], seq)
            entry["touches_state"] = entry["touches_state"] or touches_state
            if detail not in entry["examples"] and len(entry["examples"]) < EXAMPLES:
                entry["examples"].append(detail)

    def note(self, key: str, value: Any) -> None:
        """State a fact about how this run was observed."""
        with self._lock:
            self._notes[key] = value

    def count(self, key: str) -> None:
        """Count something that is no gap but that a reader of the trace should know."""
        with self._lock:
            self._notes[key] = self._notes.get(key, 0) + 1

    def report(self) -> dict[str, Any]:
        """The manifest's ``coverage``."""
        with self._lock:
            return {"gaps": {reason: dict(entry) for reason, entry in self._gaps.items()}, **self._notes}
