"""The refusal to write a report about a comparison, naming what cannot be checked."""

from __future__ import annotations

from opguard_harness.errors import ReportRefused
from opguard_harness.interface.declaration import Next

_AGAIN = "Compare again; the report is written from what can be checked."


def refused(comparison: str, why: str, hint: str = _AGAIN, *first: Next) -> ReportRefused:
    """The error.

    Args:
        comparison: Its id or path.
        why: What does not hold, without a full stop.
        hint: What to do.
        *first: Calls that do it.
    """
    calls = [*first, Next("list_runs", {"kind": "compare"}, "another comparison, or the sides to compare again")]
    return ReportRefused(f"No report was written: comparison {comparison[:120]}: {why}.", hint=hint, next=calls)
