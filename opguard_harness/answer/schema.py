"""The documented shapes of ``compare --json`` and of ``report.json``, and the check that each passes before anybody sees it."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from opguard_harness.answer.validate import faults
from opguard_harness.errors import Internal

SCHEMA = 1


@cache
def compare_schema() -> dict[str, Any]:
    """The JSON schema of the answer, from ``compare.schema.json``."""
    schema: dict[str, Any] = json.loads((resources.files("opguard_harness.answer") / "compare.schema.json").read_text("ascii"))
    return schema


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """Return ``answer`` if it is the documented object.

    Raises:
        Internal: It is not; a wrong shape is a mistake of ours and never reaches a reader as a verdict.
    """
    found = faults(answer, compare_schema())
    if found:
        raise Internal(f"The answer is not the documented object: {'; '.join(found[:5])}.")
    return answer


@cache
def report_schema() -> dict[str, Any]:
    """The JSON schema of a report, from ``report.schema.json``."""
    schema: dict[str, Any] = json.loads((resources.files("opguard_harness.answer") / "report.schema.json").read_text("ascii"))
    return schema


def checked_report(report: dict[str, Any]) -> dict[str, Any]:
    """Return ``report`` if it is the documented object.

    Raises:
        Internal: It is not.
    """
    found = faults(report, report_schema())
    if found:
        raise Internal(f"The report is not the documented object: {'; '.join(found[:5])}.")
    return report


def error_answer(error: dict[str, str]) -> dict[str, Any]:
    """The object on standard output when there is no verdict."""
    return {"schema": SCHEMA, "verdict": None, "error": error}
