"""A few lines of source of each side around a place, from what the traces kept, fenced as what the observed programs wrote."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_core.evidence.refs import SourceRef
from opguard_core.evidence.source.enclosing import Mark
from opguard_core.ids import SIDES
from opguard_core.plan.redact import redact_shapes
from opguard_harness.access.untrusted import fence
from opguard_harness.workspace.executed import executed_source

_TEXT_CHARS = 120
_KIND = "source"


@dataclass(frozen=True)
class Excerpt:
    """Numbered lines of one side, fenced; ``lines`` names the expression's own, None where the text is not stored any more."""

    text: str
    lines: SourceRef | None


def excerpts(boundary: dict[str, Any], traces: dict[str, str], *, context: int = 3) -> dict[str, Excerpt]:
    """Lines around a boundary, for each side that has one.

    Args:
        boundary: A boundary of an answer, with a place on each side or None.
        traces: The trace of each side.
        context: Lines before and after the place.

    Returns:
        By side; where the trace has gone, the statement that the answer itself carries.
    """
    return {side: _around(Path(traces[side]), boundary[side], context) for side in SIDES if boundary[side] is not None}


def numbered(text: str, first: int, last: int, marked: range, *, line_chars: int = _TEXT_CHARS, underlined: Mark | None = None) -> str:
    """Lines of a text with their numbers; those in `marked` begin with ``>``, and an expression on one line has ``^`` below it.

    Args:
        text: The whole text, so that a secret that begins further up is seen.
        first: First line, 1-based.
        last: Last line.
        marked: Lines to mark.
        line_chars: Characters of a line to show.
        underlined: Where the expression is.
    """
    plain = text.splitlines()
    lines = redact_shapes(text).splitlines()
    last = min(last, len(lines))
    width = len(str(last))
    shown = range(max(1, first), last + 1)
    rows = []
    for number in shown:
        line = lines[number - 1]
        rows.append(f"{'>' if number in marked else ' '}{number:>{width}} {line[:line_chars]}")
        if underlined is not None and underlined[0] == underlined[2] == number and line == plain[number - 1]:
            below = _underline(line, underlined[1], min(underlined[3], line_chars))
            rows += [f"{' ' * (width + 2)}{below}"] if below else []
    return "\n".join(rows)


def _underline(line: str, start: int, end: int) -> str:
    """A row of ``^`` below a part of a line; nothing where that is all of it."""
    return "" if start >= end or not (line[:start] + line[end:]).strip() else " " * start + "^" * (end - start)


def _around(trace: Path, place: dict[str, Any], context: int) -> Excerpt:
    try:
        found = executed_source(trace, place["file"])
    except OpGuardError:
        return Excerpt(fence(str(place["statement"])[: 3 * _TEXT_CHARS], _KIND).text, None)
    first, last = place["line"] - context, min(place["end_line"] + context, place["line"] + 3 * context)
    marked = range(place["line"], place["end_line"] + 1)
    text = numbered(found.text, first, last, marked)
    total = len(found.text.splitlines())
    lines = (
        SourceRef(found.digest, place["file"], place["line"], place["end_line"])
        if 1 <= place["line"] <= place["end_line"] <= total
        else None
    )
    return Excerpt(fence(text, _KIND).text, lines)
