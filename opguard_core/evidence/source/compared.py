"""Two places of two source texts: their functions, and what is different between these.

Of the ways to say which local variable is which, the one that needs the fewest changes is told. Where a text cannot be read as
code, its lines are compared, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from opguard_core.evidence.source.enclosing import MODULE, Enclosing, Function, Mark, Place, enclosing
from opguard_core.evidence.source.expressions import Kind
from opguard_core.evidence.source.tree import BLOCK

if TYPE_CHECKING:
    from opguard_core.evidence.source.changes import Found
    from opguard_core.evidence.source.naming import Pairs
    from opguard_core.evidence.source.tree import Code, Node

TEXT_CHARS = 200
MAX_LINES = 4_000
"""Lines of a function up to which it is compared as code."""

LINES_AROUND = 400
"""Lines before and after a place that are compared where a text is no code."""

_LITTLE = 0.5
_UNLIKE = "The two functions have little in common: the same work may be written elsewhere, and a list of changes says little."
_HARMLESS_COST = 0.9  # a name or an order that differs counts a little less than something that was changed


@dataclass(frozen=True)
class Change:
    """One difference between two functions.

    Attributes:
        kind: What sort.
        before: The reference's text on one line, cut; empty where it has nothing.
        after: The suspect's.
        reference: First and last line in the reference's file; None where it has nothing.
        suspect: First and last line in the suspect's file.
        within: The statement it is in, on one line, where that says more.
    """

    kind: Kind
    before: str
    after: str
    reference: tuple[int, int] | None
    suspect: tuple[int, int] | None
    within: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two functions compared.

    Attributes:
        functions: Of reference and suspect; None where there is no text.
        changes: What differs, in order of lines.
        method: "structure", "lines", or "none" where a side has no text.
        notes: Why it is not by structure, and what was left out.
    """

    functions: tuple[Function | None, Function | None]
    changes: tuple[Change, ...]
    method: str
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Both functions do the same, but for names and order of statements."""
        return self.method != "none" and not any(change.kind.is_real for change in self.changes)


def compare_sources(reference: Place | None, suspect: Place | None) -> Comparison:
    """Compare the functions around two places.

    Args:
        reference: Place of the reference; None where it has no source.
        suspect: Place of the suspect.

    Cost: parses each file once and each function twice; tens of milliseconds for functions of ordinary size.
    """
    places = (reference, suspect)
    found = [None if place is None else enclosing(place) for place in places]
    functions = (found[0].function if found[0] else None, found[1].function if found[1] else None)
    if reference is None or suspect is None or found[0] is None or found[1] is None:
        gone = [name for name, one in zip(("reference", "suspect"), found, strict=True) if one is None]
        note = f"The source of the {' and of the '.join(gone)} is not there, so there is nothing to compare with."
        return Comparison(functions, (), "none", (note,))
    problem = next((f"{name}: {one.problem}" for name, one in zip(("reference", "suspect"), found, strict=True) if one and one.problem), "")
    if not problem and (reference.text, functions[0]) == (suspect.text, functions[1]):
        return Comparison(functions, (), "structure")
    if not problem:
        problem, told, notes = _by_structure(reference, suspect, found[0].function, found[1].function)
        if not problem:
            return Comparison(functions, tuple(told), "structure", notes)
    return _by_lines(reference, suspect, found[0], found[1], problem)


def _by_structure(reference: Place, suspect: Place, first: Function, second: Function) -> tuple[str, list[Change], tuple[str, ...]]:
    """Why it cannot be told, or empty; the changes; notes on them."""
    from opguard_core.evidence.source.blocks import alike
    from opguard_core.evidence.source.tree import Unreadable, read

    if max(one.last - one.first for one in (first, second)) > MAX_LINES:
        return "it is too large to compare by structure", [], ()
    if (first.name == MODULE) != (second.name == MODULE):
        return "one side's place is in a function and the other's is not", [], ()
    try:
        codes = [read(place.text, one.first, one.last, module=one.name == MODULE) for place, one in ((reference, first), (suspect, second))]
        pairs, found = _cheapest(codes[0], codes[1])
    except Unreadable as error:
        return str(error), [], ()
    lines = (reference.text.splitlines(), suspect.text.splitlines())
    notes = (_UNLIKE,) if alike(codes[0].root, codes[1].root) < _LITTLE else ()
    return "", [*_renamed(codes[0], codes[1], pairs), *(_told(one, lines) for one in found)], notes


def _cheapest(left: Code, right: Code) -> tuple[Pairs, list[Found]]:
    """The variables and the changes that say it in the fewest words: names count first, use where names mislead."""
    from opguard_core.evidence.source.changes import changes
    from opguard_core.evidence.source.naming import by_use, same_names

    named = by_use(left, right, same_names(left, right))
    best = named, changes(left, right, named)
    if not best[1]:
        return best
    used = by_use(left, right, {})
    other = used, changes(left, right, used)
    return other if _cost(left, right, *other) < _cost(left, right, *best) else best


def _cost(left: Code, right: Code, pairs: Pairs, found: list[Found]) -> float:
    names = sum(left.bindings[a].name != right.bindings[b].name for a, b in pairs.items())
    real = sum(one.kind.is_real for one in found)
    return real + _HARMLESS_COST * (names + len(found) - real)


def _renamed(left: Code, right: Code, pairs: Pairs) -> Iterator[Change]:
    for a, b in sorted(pairs.items()):
        before, after = left.bindings[a].name, right.bindings[b].name
        if before != after:
            yield Change(Kind.RENAMED, before, after, None, None, "parameter" if left.bindings[a].parameter else "")


def _told(found: Found, lines: tuple[list[str], list[str]]) -> Change:
    """A change in text."""
    texts, ranges = [], []
    for node, side in zip((found.reference, found.suspect), lines, strict=True):
        texts.append("" if node is None else _text(node, side, header=found.header))
        ranges.append(None if node is None or node.mark is None else (node.mark[0], _last(node, header=found.header)))
    statement = found.statement
    within = "" if statement is None or statement in (found.reference, found.suspect) else _text(statement, lines[1], header=False)
    return Change(found.kind, texts[0], texts[1], ranges[0], ranges[1], within)


def _last(node: Node, *, header: bool) -> int:
    assert node.mark is not None
    body = _body(node)
    return node.mark[2] if body is None or not header else max(node.mark[0], body[0] - 1)


def _body(node: Node) -> Mark | None:
    """Where its first block is."""
    return next((child.mark for child in node.blocks if child.kind == BLOCK), None)


def _text(node: Node, lines: list[str], *, header: bool) -> str:
    """Source of a node on one line; of a statement with blocks, what stands before them."""
    if node.mark is None:
        return ""
    line, column, end_line, end_column = node.mark
    body = _body(node)
    if body is not None:
        end_line, end_column = body[:2]
    rows = lines[line - 1 : end_line]
    if not rows:
        return ""
    rows[-1] = rows[-1][:end_column]
    rows[0] = rows[0][column:]
    text = " ".join(" ".join(_code(row) for row in rows).split())
    return _short(f"{text} ..." if body is not None and not header else text)


def _code(row: str) -> str:
    return "" if row.lstrip().startswith("#") else row


def _short(text: str) -> str:
    return text if len(text) <= TEXT_CHARS else f"{text[: TEXT_CHARS - 3]}..."


# -- texts that are no code --------------------------------------------------------------------------------------------


def _by_lines(reference: Place, suspect: Place, first: Enclosing, second: Enclosing, problem: str) -> Comparison:
    """Compare lines, those without text or with nothing but a comment aside."""
    functions, rows, cut = [], [], False
    for place, found in ((reference, first), (suspect, second)):
        function = found.function
        low, high = max(function.first, place.line - LINES_AROUND), min(function.last, max(place.end_line, 1) + LINES_AROUND)
        cut = cut or (low, high) != (function.first, function.last)
        functions.append(Function(function.name, low, high, function.mark))
        rows.append(
            [
                (number, " ".join(line.split()))
                for number, line in enumerate(place.text.splitlines()[low - 1 : high], low)
                if line.strip() and not line.lstrip().startswith("#")
            ]
        )
    told = []
    match = SequenceMatcher(None, [text for _, text in rows[0]], [text for _, text in rows[1]], autojunk=False)
    for what, a, b, c, d in match.get_opcodes():
        if what == "equal":
            continue
        before, after = rows[0][a:b], rows[1][c:d]
        told.append(Change(Kind.LINE, _joined(before), _joined(after), _range(before), _range(after)))
    notes = [f"Compared by lines, for {problem}."]
    notes += [f"Only {LINES_AROUND} lines before and after the place were compared."] if cut else []
    return Comparison((functions[0], functions[1]), tuple(told), "lines", tuple(notes))


def _joined(rows: list[tuple[int, str]]) -> str:
    return _short(" | ".join(text for _, text in rows))


def _range(rows: list[tuple[int, str]]) -> tuple[int, int] | None:
    return (rows[0][0], rows[-1][0]) if rows else None
