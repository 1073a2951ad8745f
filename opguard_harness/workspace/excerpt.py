"""A few lines of source of each side around a pivot, from what the traces kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_harness.workspace.executed import executed_source

_TEXT_CHARS = 120


def excerpts(answer: dict[str, Any], *, context: int = 3) -> dict[str, str]:
    """Numbered lines around the pivot, for each side that has one.

    Args:
        answer: A checked answer with a pivot.
        context: Lines before and after the place.

    Returns:
        Side to text; where the trace has gone, the statement that the answer itself carries.
    """
    result = {}
    for side in ("reference", "suspect"):
        place = answer["pivot"][side]
        if place is not None:
            result[side] = _around(Path(answer["trace"][side]), place, context)
    return result


def _around(trace: Path, place: dict[str, Any], context: int) -> str:
    try:
        lines = executed_source(trace, place["file"]).text.splitlines()
    except OpGuardError:
        return str(place["statement"])[: 3 * _TEXT_CHARS]
    first, last = max(1, place["line"] - context), min(len(lines), place["end_line"] + context, place["line"] + 3 * context)
    marked = range(place["line"], place["end_line"] + 1)
    return "\n".join(f"{'>' if number in marked else ' '}{number} {lines[number - 1][:_TEXT_CHARS]}" for number in range(first, last + 1))
