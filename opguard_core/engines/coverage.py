"""What could not be seen, as data: counted by reason, written into the rank manifest at the end."""

from __future__ import annotations

import threading
from typing import Any

EXAMPLES = 5


class Coverage:
    """Counts of gaps by reason.

    ``touches_state`` in a report means that some of them involved a parameter, gradient, buffer or optimizer state, or
    bytes that an observed operator read: such a gap makes ``identical`` impossible.
    """

    def __init__(self) -> None:
        self._gaps: dict[str, dict[str, Any]] = {}
        self._notes: dict[str, Any] = {}
        self._lock = threading.RLock()

    def gap(self, reason: str, detail: str, *, touches_state: bool) -> None:
        """Count one thing that could not be seen.

        Args:
            reason: A slug of a closed set.
            detail: What it was: an operator, a type, a thread.
            touches_state: Whether it fed a parameter or other observed storage.
        """
        with self._lock:
            entry = self._gaps.setdefault(reason, {"count": 0, "touches_state": False, "examples": []})
            entry["count"] += 1
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
