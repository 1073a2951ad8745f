"""The page of a report that came in a pack: a browser runs what is in it, so it stays only where it is what we lay out."""

from __future__ import annotations

import json
from pathlib import Path

from opguard_core.errors import OpGuardError
from opguard_core.trace.files import read_checked
from opguard_harness.answer.schema import report_schema
from opguard_harness.answer.validate import faults
from opguard_harness.report.page import html_page
from opguard_harness.workspace.documents import once

_PAGE, _DATA = "report.html", "report.json"
_MAX_BYTES = 64 << 20


def drop_strange_page(folder: Path) -> list[dict[str, str]]:
    """Remove the page of a case's folder unless report.json beside it gives the same bytes.

    Args:
        folder: Of a case, as it was taken out of a pack.

    Returns:
        What was removed, with the reason.
    """
    page = folder / _PAGE
    if not page.exists() or _page_of(folder / _DATA) == page.read_bytes():
        return []
    page.unlink()
    why = "it is not what this release lays out of the report.json beside it, and may hold anything; `write_report` makes it again"
    return [{"what": f"case/{_PAGE}", "why": why}]


def _page_of(data: Path) -> bytes | None:
    """The page of a report; None of what is no report."""
    try:
        model = json.loads(read_checked(data, limit=_MAX_BYTES), object_pairs_hook=once)
        return None if faults(model, report_schema()) else html_page(model).encode("utf-8")
    except (OpGuardError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None  # a stranger's document: whatever does not fit in it makes it none of ours
