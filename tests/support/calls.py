"""Calls of tools as an agent makes them: a job is started, waited for, and its result is checked against its schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opguard_harness.answer.validate import faults
from opguard_harness.interface.declaration import JobResult, Kind
from opguard_harness.interface.schemas import schema_of
from opguard_harness.registry import find

_OURS = ("summary", "evidence", "next", "truncated")


def answer_schema(tool: str) -> dict[str, Any]:
    """Schema of what a call of that tool answers."""
    declared = find(tool)
    return schema_of(JobResult if declared.kind is Kind.JOB else declared.result)


def finished(call: Callable[..., dict[str, Any]], tool: str, **arguments: Any) -> dict[str, Any]:
    """Start a job and wait for its end.

    Args:
        call: Called with a tool's name and its arguments as keywords; gives the result.
        tool: A tool of kind ``JOB``.
        **arguments: Its arguments.

    Returns:
        The job, and what it found, in one dictionary.
    """
    told = call(tool, **arguments)
    while told["state"] in ("queued", "running"):
        told = call("get_job", job=told["job"], wait_s=45)
    assert told["state"] == "succeeded", told
    result = {**{key: told[key] for key in _OURS}, **told["result"]}
    assert faults(result, schema_of(find(tool).result)) == []
    return {**told, **result}
