"""Frames, stacks and source lines of both sides, each told once and named by its number."""

from __future__ import annotations

from typing import Any

from opguard_core.certify.places import ChangedFiles, Places
from opguard_core.errors import OpGuardError
from opguard_core.evidence.refs import SourceRef
from opguard_core.plan.redact import redact_shapes
from opguard_core.trace.reader import RankTrace, Run
from opguard_core.trace.schema import EventRow, FrameRow
from opguard_harness.access.untrusted import one_line, visible

CONTEXT = 5
LINE_CHARS = 200
MOST_LINES = 40
TEXT_CHARS = 200


class Tables:
    """What rows of a report refer to by number.

    Args:
        runs: Both runs, the reference first.

    Attributes:
        frames: Places with `source`, the number of their lines, or None.
        stacks: Numbers of frames, outermost first.
        sources: Lines with the expression marked.
    """

    def __init__(self, runs: tuple[Run, Run]) -> None:
        self.frames: list[dict[str, Any]] = []
        self.stacks: list[list[int]] = []
        self.sources: list[dict[str, Any]] = []
        self._runs = runs
        self._places: dict[tuple[int, int], Places] = {}
        self._frames: dict[tuple[int, str, int, int, int, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._texts: dict[tuple[int, str], tuple[list[str], list[str]] | None] = {}

    def places(self, side: int, rank: int, other: RankTrace | None) -> Places:
        """Places of a rank of a side; a library that changed against the other side counts as the reader's concern."""
        key = (side, rank)
        if key not in self._places:
            own = self._runs[side].ranks[rank]
            self._places[key] = Places(own, ChangedFiles.of(own, other).changed if other is not None else frozenset())
        return self._places[key]

    def of_event(self, side: int, places: Places, event: EventRow) -> tuple[int | None, int | None]:
        """Numbers of the frame and the stack of an event; None where it has none."""
        stack = -1 if event.stack is None else event.stack
        found = places.frame(stack, *(-1 if number is None else number for number in (event.user_frame, event.library_frame)))
        frame = None if found is None else self.frame(side, found)
        rows = tuple(self.frame(side, row) for row in places.frames(stack))
        if not rows:
            return frame, None
        if rows not in self._stacks:
            self._stacks[rows] = len(self.stacks)
            self.stacks.append(list(rows))
        return frame, self._stacks[rows]

    def frame(self, side: int, row: FrameRow) -> int:
        """Number of a frame."""
        key = (side, f"{row.file}\0{row.function}\0{row.source}", row.line, row.end_line, row.column, row.end_column)
        if key not in self._frames:
            self._frames[key] = len(self.frames)
            self.frames.append(
                {
                    "file": one_line(row.file, TEXT_CHARS),
                    "line": row.line,
                    "function": one_line(row.function, TEXT_CHARS),
                    "text": one_line(row.text, TEXT_CHARS),
                    "user": row.category == "user",
                    "source": self._source(side, row),
                }
            )
        return self._frames[key]

    def _source(self, side: int, row: FrameRow) -> int | None:
        """Number of the lines around a frame's expression; None where the trace does not hold them."""
        text = self._text(side, row.source)
        if text is None or not 1 <= row.line <= len(text[0]):
            return None
        raw, clean = text
        last = min(max(row.line, row.end_line), len(raw))
        first, end = max(1, row.line - CONTEXT), min(len(raw), last + CONTEXT, row.line + MOST_LINES)
        lines = [
            {"number": number, **_line(raw[number - 1], clean[number - 1], _marked(row, number, raw[number - 1]))}
            for number in range(first, end + 1)
        ]
        cited = str(SourceRef(row.source, row.file, row.line, last))
        self.sources.append({"id": cited, "file": one_line(row.file, TEXT_CHARS), "digest": row.source, "lines": lines})
        return len(self.sources) - 1

    def _text(self, side: int, digest: str) -> tuple[list[str], list[str]] | None:
        """Lines of a stored text, as they are and without what looks like a secret."""
        key = (side, digest)
        if key not in self._texts:
            try:
                text = self._runs[side].source(digest) if digest else None
            except OpGuardError:
                text = None
            clean = None if text is None else redact_shapes(text).splitlines()
            self._texts[key] = None if text is None or clean is None else (text.splitlines(), clean)
        return self._texts[key]


def _marked(row: FrameRow, number: int, line: str) -> tuple[int, int] | None:
    """Characters of a line that belong to a frame's expression, from UTF-8 columns; columns 0 to 0 mean whole lines."""
    last = max(row.line, row.end_line)
    if not row.line <= number <= last:
        return None
    data = line.encode("utf-8", "surrogatepass")
    indent = len(line) - len(line.lstrip())
    whole = row.column == 0 and row.end_column == 0
    first = len(data[: row.column].decode("utf-8", "ignore")) if number == row.line and not whole else indent
    end = len(data[: row.end_column].decode("utf-8", "ignore")) if number == last and not whole else len(line.rstrip())
    return (first, end) if first < end else None


def _line(raw: str, clean: str, mark: tuple[int, int] | None) -> dict[str, Any]:
    """A line as it is shown, with the characters to mark counted there; all of it where a secret was taken out of it."""
    if raw != clean:
        mark = None if mark is None else (0, len(clean))
    cut = clean[:LINE_CHARS]
    first, end = (0, 0) if mark is None else (min(mark[0], len(cut)), min(mark[1], len(cut)))
    before, inside, after = (_shown(part) for part in (cut[:first], cut[first:end], cut[end:]))
    more = " ..." if len(clean) > LINE_CHARS else ""
    return {"text": f"{before}{inside}{after}{more}", "mark": [len(before), len(before) + len(inside)] if inside else None}


def _shown(text: str) -> str:
    return visible(text.replace("\t", "    ")).replace("\n", "\\n")
