"""A few lines of source of each side around a pivot, from what the traces kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_harness.workspace.executed import executed_source

_CONTEXT = 3


def excerpts(answer: dict[str, Any]) -> dict[str, str]:
    """Numbered lines around the pivot, for each side that has one.

    Args:
        answer: A checked answer with a pivot.

    Returns:
        Side to text; where the trace has gone, the statement that the answer itself carries.
    """
    result = {}
    for side in ("reference", "suspect"):
        place = answer["pivot"][side]
        if place is not None:
            result[side] = _around(Path(answer["trace"][side]), place)
    return result


def _around(trace: Path, place: dict[str, Any]) -> str:
    try:
        lines = executed_source(trace, place["file"]).text.splitlines()
    except OpGuardError:
        return str(place["statement"])[:900]
    first, last = max(1, place["line"] - _CONTEXT), min(len(lines), place["end_line"] + _CONTEXT, place["line"] + 3 * _CONTEXT)
    marked = range(place["line"], place["end_line"] + 1)
    return "\n".join(f"{'>' if number in marked else ' '}{number} {lines[number - 1][:160]}" for number in range(first, last + 1))
