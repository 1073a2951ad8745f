"""The function that encloses a place, found in the text of its file; the text of that function alone, so that a huge file costs little."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

MAX_TEXT_CHARS = 8 << 20
MAX_DEPTH = 90
"""Nesting of syntax above which a text is not handed to the parser that keeps formatting: it has no limit of its own."""

MODULE = "<module>"
_DEF = re.compile(r"\s*(?:async\s+)?def\s")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

Mark = tuple[int, int, int, int]
"""Line, column, end line, end column: lines 1-based, columns in characters."""


@dataclass(frozen=True)
class Place:
    """A place in an executed source text.

    Attributes:
        text: The whole text of the file; empty if nobody has it.
        file: Name of the file.
        line: First line, 1-based; 0 where only the function is known.
        end_line: Last line.
        column: First column in UTF-8 bytes; both columns 0 mean whole lines.
        end_column: Column after the last byte.
        function: Qualified name, as the interpreter gives it.
    """

    text: str
    file: str
    line: int
    end_line: int
    column: int
    end_column: int
    function: str


@dataclass(frozen=True)
class Function:
    """A function in its file.

    Attributes:
        name: Qualified name as written in the file, ``<module>`` for code outside of functions.
        first: First line of the file that belongs to it, decorators included.
        last: Last line.
        mark: The expression of the place; None where its columns are not known.
    """

    name: str
    first: int
    last: int
    mark: Mark | None


@dataclass(frozen=True)
class Enclosing:
    """A function found, and why it cannot be parsed, if so.

    Attributes:
        function: The function, or the lines around the place where the text is no syntax.
        problem: Empty where `function` is one that can be parsed.
    """

    function: Function
    problem: str = ""


def enclosing(place: Place) -> Enclosing | None:
    """Find the innermost ``def`` around a place; lambdas and comprehensions belong to the ``def`` they are in.

    Returns:
        None where there is no text, or no function of that name in it where only the name is known.
    """
    if not place.text:
        return None
    mark = mark_of(place)
    total = len(place.text.splitlines())
    tree, problem = _parsed(place.text)
    if tree is None:
        first, last = _by_indentation(place)
        return Enclosing(Function(place.function or MODULE, first, last, mark), problem)
    found = _at(tree, place) if place.line else _named(tree, place.function)
    if found is None:
        if not place.line:
            return None
        problem = "" if _depth_below(tree) else _DEEP
        return Enclosing(Function(MODULE, 1, total, mark), problem)
    name, node = found
    first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
    return Enclosing(Function(name, first, node.end_lineno or node.lineno, mark), "" if _depth_below(node) else _DEEP)


_DEEP = "its syntax is nested too deeply"


def _parsed(text: str) -> tuple[ast.Module | None, str]:
    if len(text) > MAX_TEXT_CHARS:
        return None, "the file is too large"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a program's text warns of is not our reader's concern
            return ast.parse(text), ""
    except (SyntaxError, ValueError):
        return None, "the text does not parse here"
    except (RecursionError, MemoryError):
        return None, _DEEP


def _at(tree: ast.Module, place: Place) -> tuple[str, ast.FunctionDef | ast.AsyncFunctionDef] | None:
    """The innermost function whose body holds the place; what decorates it or gives a default ran outside of it."""
    found = None
    names: list[str] = []
    body: list[ast.AST] = [tree]
    while body:
        node = next((child for parent in body for child in ast.iter_child_nodes(parent) if _covers(child, place)), None)
        if node is None:
            break
        if isinstance(node, (*_DEFINITIONS, ast.ClassDef)):
            names.append(node.name)
        if isinstance(node, _DEFINITIONS):
            inside = _in_body(node, place)
            found = (".".join(names), node) if inside or place.column == place.end_column == 0 else found
        body = [node]
    return found


def _covers(node: ast.AST, place: Place) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if first is None or last is None:
        # Parts without a place (arguments, handlers of a match) cover what their own parts cover.
        return any(_covers(child, place) for child in ast.iter_child_nodes(node))
    for decorator in getattr(node, "decorator_list", ()):
        first = min(first, decorator.lineno)
    if not first <= place.line <= last:
        return False
    if place.column == place.end_column == 0:
        return isinstance(node, ast.stmt)
    start, end = int(getattr(node, "col_offset", 0)), int(getattr(node, "end_col_offset", None) or 0)
    if place.line == getattr(node, "lineno", 0) and place.column < start:
        return False
    return bool(place.line < last or place.column < end)


def _in_body(node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> bool:
    start = node.body[0]
    return (start.lineno, start.col_offset) <= (place.line, place.column) or place.function.endswith(node.name)


def _named(tree: ast.Module, function: str) -> tuple[str, ast.FunctionDef | ast.AsyncFunctionDef] | None:
    """The function of a qualified name."""
    wanted = [part for part in function.split(".") if not part.startswith("<")]
    node: ast.AST = tree
    for part in wanted:
        below = [child for child in _definitions_in(node) if child.name == part]
        if not below:
            return None
        node = below[-1]  # a later definition of a name replaces an earlier one
    return (".".join(wanted), node) if isinstance(node, _DEFINITIONS) else None


def _definitions_in(node: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Functions and classes directly in a scope, those in its branches and loops too."""
    found: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = []
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        child = waiting.pop(0)
        if isinstance(child, (*_DEFINITIONS, ast.ClassDef)):
            found.append(child)
        elif not isinstance(child, ast.expr):
            waiting = [*ast.iter_child_nodes(child), *waiting]
    return found


def _by_indentation(place: Place) -> tuple[int, int]:
    """Lines from the nearest ``def`` above that is indented less, to where its block ends; all lines where there is none."""
    lines = place.text.splitlines()
    if not 1 <= place.line <= len(lines):
        return 1, len(lines)
    own = _indentation(lines[place.line - 1])
    start = next((at for at in range(place.line - 1, -1, -1) if _DEF.match(lines[at]) and _indentation(lines[at]) < own), None)
    if start is None:
        return 1, len(lines)
    least = _indentation(lines[start])
    ends = (at for at in range(place.line, len(lines)) if lines[at].strip() and _indentation(lines[at]) <= least)
    return start + 1, next(ends, len(lines))


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _depth_below(root: ast.AST) -> bool:
    level: list[ast.AST] = [root]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return True
    return False


def mark_of(place: Place) -> Mark | None:
    """The expression's range, its columns in characters."""
    lines = place.text.splitlines()
    if place.column == place.end_column == 0 or not 1 <= place.line <= place.end_line <= len(lines):
        return None
    first, last = (
        len(lines[line - 1].encode("utf-8", "surrogatepass")[:column].decode("utf-8", "ignore"))
        for line, column in ((place.line, place.column), (place.end_line, place.end_column))
    )
    return place.line, first, place.end_line, last
