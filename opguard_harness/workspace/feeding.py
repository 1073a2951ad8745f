"""What one side alone did before the pivot of a stored answer, read again from the traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opguard_core.errors import TraceFormatError
from opguard_core.ids import SIDES


def alone_before(pivot: dict[str, Any], traces: dict[str, str], ranks: dict[str, int]) -> list[dict[str, Any]]:
    """Work of one side alone that made what the pivot reads, nearest first; empty where there is none, or no trace to tell.

    Args:
        pivot: As in an answer.
        traces: The trace of each side.
        ranks: The rank of each side.
    """
    if not pivot.get("seq"):
        return []
    from opguard_core.certify.feeding import feeding
    from opguard_core.trace.reader import Run

    try:
        reference, suspect = (Run.open(Path(traces[side])).ranks[ranks[side]] for side in SIDES)
        return feeding(reference, suspect, pivot)
    except (TraceFormatError, LookupError):
        return []
