"""The one list of tools. The shell, ``tools --json``, the README table and the schema snapshots are read from it."""

from __future__ import annotations

from opguard_harness.errors import UnknownTool
from opguard_harness.interface.declaration import GROUPS, Kind, Tool
from opguard_harness.tools import (
    align,
    cases,
    compare,
    comparisons,
    confirming,
    contracts,
    differences,
    environment,
    evidence,
    filters,
    guarded,
    jobs,
    listing,
    preflight,
    reports,
    searching,
    sources,
)

TOOLS: tuple[Tool, ...] = (
    *cases.TOOLS,
    *environment.TOOLS,
    *compare.TOOLS,
    *preflight.TOOLS,
    *guarded.TOOLS,
    *align.TOOLS,
    *jobs.TOOLS,
    *listing.TOOLS,
    *contracts.TOOLS,
    *comparisons.TOOLS,
    *differences.TOOLS,
    *confirming.TOOLS,
    *evidence.TOOLS,
    *filters.TOOLS,
    *sources.TOOLS,
    *searching.TOOLS,
    *reports.TOOLS,
)


def find(name: str) -> Tool:
    """The tool of that name.

    Raises:
        UnknownTool: There is none; the message names the closest one.
    """
    for tool in TOOLS:
        if tool.name == name:
            return tool
    from difflib import get_close_matches

    known = [tool.name for tool in TOOLS]
    close = get_close_matches(name, known, n=1)
    raise UnknownTool(f"There is no tool {name!r}{f'; did you mean {close[0]!r}?' if close else '.'} Known: {', '.join(known)}.")


def markdown_table() -> str:
    """The README's table of tools: by group, with the arguments that have to be given."""
    from opguard_harness.interface.schemas import schema_of

    rows = ["| group | tool | what it does | changes | needs |", "|---|---|---|---|---|"]
    for tool in sorted(TOOLS, key=lambda tool: GROUPS.index(tool.group)):
        needs = ", ".join(f"`{name}`" for name in schema_of(tool.arguments).get("required", []))
        job = ", as a job" if tool.kind is Kind.JOB else ""
        rows.append(f"| {tool.group} | `{tool.name}` | {tool.headline} | {_changes(tool)}{job} | {needs} |")
    return "\n".join(rows)


def _changes(tool: Tool) -> str:
    """What a call may change, in the words of the README."""
    if tool.read_only:
        return "nothing"
    if tool.open_world:
        return "runs your program"
    return "ends your program" if tool.destructive else "writes results"
