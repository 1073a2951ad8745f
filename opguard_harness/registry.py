"""The one list of tools. The shell, ``tools --json``, the README table and the schema snapshots are read from it."""

from __future__ import annotations

from opguard_harness.errors import UnknownTool
from opguard_harness.tools import comparisons, environment, filters, preflight, runs, sources
from opguard_harness.tools.declaration import Tool

TOOLS: tuple[Tool, ...] = (*environment.TOOLS, *preflight.TOOLS, *runs.TOOLS, *comparisons.TOOLS, *filters.TOOLS, *sources.TOOLS)


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
    """The README's table of tools."""
    rows = ["| tool | what it does | changes | arguments |", "|---|---|---|---|"]
    for tool in TOOLS:
        properties = tool.describe()["arguments"]["properties"]
        required = tool.describe()["arguments"].get("required", [])
        arguments = ", ".join(f"`{name}`" if name in required else f"`{name}`?" for name in properties) or "none"
        changes = "nothing" if tool.read_only else "runs your program" if tool.destructive else "writes results"
        rows.append(f"| `{tool.name}` | {tool.headline} | {changes} | {arguments} |")
    return "\n".join(rows)
