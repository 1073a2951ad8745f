"""One call of one tool: the seam below both the MCP server and `opguard-harness call`, so that both give the same answer."""

from __future__ import annotations

from functools import partial
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_harness.access.results import error_data, error_summary, guarded
from opguard_harness.access.rules import Access, using
from opguard_harness.answer.plain import dumps, plain
from opguard_harness.config import ANSWER_LIMIT_CHARS
from opguard_harness.errors import Internal
from opguard_harness.interface.declaration import Kind, Next, Report, Result, Tool
from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.registry import TOOLS, find

_LIST = Next("list_runs", {}, "the ids that there are")
_DOCTOR = Next("doctor", {}, "what this machine lacks, with the line that installs it")
_FILTERS = Next("list_filters", {}, "the filters that there are")
_WAYS_OUT = {
    "dependency-missing": _DOCTOR,
    "evidence-invalid": _LIST,
    "evidence-not-found": _LIST,
    "filter-not-found": _FILTERS,
    "job-not-found": _LIST,
    "no-training-python": _DOCTOR,
}
"""The call that leads out of an error which carries none itself, by slug."""
_HINTED = {"`list_runs`": _LIST, "`doctor`": _DOCTOR, "`list_filters`": _FILTERS}
"""Of other errors: the first of these tools that the hint names. They need no arguments."""

_ALWAYS = frozenset(("summary", "evidence", "next", "truncated"))


async def unreported(done: float, total: float | None, what: str) -> None:
    """The report of a caller that wants none."""


async def invoke(name: str, given: Any, access: Access, report: Report = unreported) -> dict[str, Any]:
    """Carry out one call.

    Args:
        name: A tool of the registry.
        given: Its arguments as JSON values.
        access: What the call may touch.
        report: Told progress by the tools that wait.

    Returns:
        The result as plain JSON values.

    Raises:
        OpGuardError: Anything the caller may want to know; the message says what to do.
    """
    tool = find(name)
    access.require(tool)
    arguments = access.admit(tool, parse_arguments(tool, given))
    with using(access):
        found: Result = await _run(tool, arguments, access, report)
        result: dict[str, Any] = _sendable(plain(found))
    result["next"] = _offered(result["next"], access)
    if found.sparse:
        result = {name: value for name, value in result.items() if name in _ALWAYS or value not in (None, "", [], {})}
    result = guarded(result)
    length = len(dumps(result))
    if length > ANSWER_LIMIT_CHARS:
        raise Internal(f"The result of {tool.name} has {length} characters; the limit is {ANSWER_LIMIT_CHARS}.")
    return result


async def _run(tool: Tool, arguments: Any, access: Access, report: Report) -> Any:
    import anyio.to_thread

    if tool.kind is Kind.ANSWER:
        return await anyio.to_thread.run_sync(partial(tool.run, arguments), abandon_on_cancel=True)
    if tool.kind is Kind.WAIT:
        return await tool.run(arguments, report)
    from opguard_harness.tools.jobs import start

    return await start(tool, arguments, access, report)


def error_result(error: OpGuardError, access: Access | None = None) -> dict[str, Any]:
    """What a call that failed answers with: the shape of a result, and the error.

    Args:
        error: May carry ``next``, a sequence of ``Next``: the calls that lead out of it.
        access: Rules of the server; calls that it does not offer are left out. None offers all.
    """
    known: dict[str, str] = _sendable(error.as_dict())
    following = plain(error.facts["next"] if "next" in error.facts else _ways_out(known))
    return {
        "summary": _sendable(error_summary(error)),
        "error": error_data(known),
        "evidence": [],
        "next": _offered(following, access),
        "truncated": None,
    }


def _ways_out(known: dict[str, str]) -> list[Next]:
    """The call that an error leads to by its kind, else by its hint."""
    hinted = next((call for named, call in _HINTED.items() if named in known["fix"]), None)
    call = _WAYS_OUT.get(known["slug"], hinted)
    return [call] if call else []


def _sendable(value: Any) -> Any:
    """Replace lone surrogates (of file names that are no UTF-8): no transport can carry them as UTF-8."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_sendable(key): _sendable(item) for key, item in value.items()}
    return [_sendable(item) for item in value] if isinstance(value, list) else value


def _offered(following: list[dict[str, Any]], access: Access | None) -> list[dict[str, Any]]:
    """The calls of a ``next`` that can be made."""
    names = {tool.name for tool in TOOLS if access is None or access.offers(tool)}
    return [call for call in following if call["tool"] in names]
