"""The text of executed source files, and which statement or expression a bytecode instruction belongs to."""

from __future__ import annotations

import ast
import linecache
import opcode
import textwrap
import tokenize
from types import CodeType
from typing import Any, NamedTuple

from opguard_core.trace.sources import source_digest

TEXT_LIMIT = 4000  # characters of one expression or statement kept in a frame row
_PRECALL = bytes([opcode.opmap["PRECALL"]]) if "PRECALL" in opcode.opmap else None


class Span(NamedTuple):
    """Lines 1-based, columns in UTF-8 bytes, as CPython gives them; columns 0..0 mean whole lines."""

    line: int
    end_line: int
    column: int
    end_column: int


class Source:
    """One source file as it was when first met.

    Attributes:
        text: Whole text, "" if unknown.
        digest: sha256 of the text, "" if unknown.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = source_digest(text) if text else ""
        self._lines = text.splitlines(keepends=True)
        self._tree: ast.Module | None = None
        self._parsed = False

    def cut(self, span: Span) -> str:
        """Source of a span; whole lines, stripped, if it has no columns."""
        if not 1 <= span.line <= len(self._lines):
            return ""
        rows = self._lines[span.line - 1 : span.end_line]
        if span.column == span.end_column == 0:
            return textwrap.dedent("".join(rows)).strip()[:TEXT_LIMIT]
        encoded = [row.encode("utf-8", "surrogatepass") for row in rows]
        encoded[-1] = encoded[-1][: span.end_column]
        encoded[0] = encoded[0][span.column :]
        return b"".join(encoded).decode("utf-8", "replace")[:TEXT_LIMIT]

    def locate(self, span: Span) -> tuple[Span, Span]:
        """The expression and the statement of an instruction.

        An instruction that spans a whole compound statement (the loop step of ``for``, the exit of ``with``) is clipped to
        its header, which is what runs there.
        """
        statement = self._statement(span)
        if statement is None:
            return span, Span(span.line, span.end_line, 0, 0)
        header = _header(statement)
        whole = Span(statement.lineno, statement.end_lineno or statement.lineno, statement.col_offset, statement.end_col_offset or 0)
        if header is None:
            return span, whole
        if (span.line, span.column) <= (header.line, header.column) and span.end_line > header.end_line:
            return header, header
        return span, header

    def statement_text(self, span: Span) -> str:
        """A statement, dedented: its first line keeps no indentation, the others lose what the first had."""
        first, *others = self.cut(span).rstrip().split("\n")
        return "\n".join([first, *[row[min(span.column, len(row) - len(row.lstrip())) :] for row in others]])

    def _statement(self, span: Span) -> ast.stmt | None:
        if not self._parsed:
            self._parsed = True
            try:
                self._tree = ast.parse(self.text) if self.text else None
            except (SyntaxError, ValueError, RecursionError):
                self._tree = None  # not the text that runs (a template, another encoding): places fall back to lines
        if self._tree is None:
            return None
        best: ast.stmt | None = None
        body: list[ast.stmt] = self._tree.body
        while body:
            inner = next((node for node in body if _covers(node, span)), None)
            if inner is None:
                break
            best = inner
            body = _children(inner)
        return best


def _covers(node: ast.AST, span: Span) -> bool:
    first = getattr(node, "lineno", 0)
    for decorator in getattr(node, "decorator_list", ()):
        first = min(first, decorator.lineno)
    last = getattr(node, "end_lineno", 0)
    if not first <= span.line or not span.end_line <= last:
        return False
    if span.column == span.end_column == 0:
        return True
    starts = first < span.line or getattr(node, "col_offset", 0) <= span.column
    return starts and (span.end_line < last or span.end_column <= (getattr(node, "end_col_offset", None) or 0))


def _children(node: ast.stmt) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    for field in ("body", "orelse", "finalbody"):
        found += [child for child in getattr(node, field, ()) if isinstance(child, ast.stmt)]
    for handler in getattr(node, "handlers", ()):
        found += handler.body
    for case in getattr(node, "cases", ()):
        found += case.body
    return found


def _header(node: ast.stmt) -> Span | None:
    """The part of a compound statement before its body, None for a simple one."""
    end: ast.AST | None
    if isinstance(node, ast.For | ast.AsyncFor):
        end = node.iter
    elif isinstance(node, ast.While | ast.If):
        end = node.test
    elif isinstance(node, ast.With | ast.AsyncWith):
        item = node.items[-1]
        end = item.optional_vars or item.context_expr
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Try | ast.Match):
        body = getattr(node, "body", None) or list(getattr(node, "cases", ()))
        first = getattr(body[0], "lineno", node.lineno) if body else node.lineno
        return Span(node.lineno, max(node.lineno, min(first - 1, node.lineno + 20)), node.col_offset, 10**6)
    else:
        return None
    return Span(node.lineno, getattr(end, "end_lineno", None) or node.lineno, node.col_offset, getattr(end, "end_col_offset", None) or 0)


class Sources:
    """Texts of source files, read once, when the first instruction of the file is met."""

    def __init__(self) -> None:
        self._known: dict[str, Source] = {}

    def of(self, filename: str, namespace: dict[str, Any] | None = None) -> Source:
        """Source of a file named by a code object; ``namespace`` are the globals of a frame running it."""
        source = self._known.get(filename)
        if source is None:
            source = self._known[filename] = Source(_read(filename, namespace or {}))
        return source


def _read(filename: str, namespace: dict[str, Any]) -> str:
    if filename in linecache.cache and len(linecache.cache[filename]) == 4:
        # Notebooks and interactive shells put their cells here; there is no file.
        if filename.startswith("<"):
            return "".join(linecache.getlines(filename))
    if filename.startswith("<"):
        return ""
    try:
        with tokenize.open(filename) as stream:
            return stream.read()
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        pass
    loader = namespace.get("__loader__")
    get_source = getattr(loader, "get_source", None)
    if get_source is None or not type(loader).__module__.startswith(("zipimport", "importlib", "_frozen")):
        return ""  # a loader of the program's own would be user code
    try:
        return get_source(namespace.get("__name__", "")) or ""
    except (ImportError, OSError, ValueError):
        return ""


class Positions:
    """Source spans of instructions, by code object and ``f_lasti``."""

    def __init__(self) -> None:
        self._known: dict[int, list[Any]] = {}

    def of(self, code: CodeType, lasti: int) -> Span:
        """Span of one instruction; on CPython 3.10 its line only."""
        if not hasattr(code, "co_positions"):
            return _line_of(code, lasti)
        table = self._known.get(id(code))
        if table is None:
            table = self._known[id(code)] = list(code.co_positions())
        index = lasti // 2
        if not 0 <= index < len(table):
            return Span(code.co_firstlineno, code.co_firstlineno, 0, 0)
        line, end_line, column, end_column = table[index]
        if line is None:
            return _line_of(code, lasti)
        if column is None or end_column is None or end_line is None:
            return Span(line, end_line or line, 0, 0)
        return Span(line, end_line, column, end_column)


def instruction_of(code: CodeType, lasti: int) -> int:
    """The one ``f_lasti`` of a place that may have two.

    In Python 3.11 a call is two instructions, PRECALL and CALL, and a frame stands at the first once that has been specialised,
    which depends on how often it has run. Source: CPython 3.11, Python/ceval.c; PRECALL takes one cache entry.
    """
    if _PRECALL is not None and code.co_code[lasti : lasti + 1] == _PRECALL:
        return lasti + 4
    return lasti


def _line_of(code: CodeType, lasti: int) -> Span:
    for start, end, line in code.co_lines():
        if start <= lasti < end and line is not None:
            return Span(line, line, 0, 0)
    return Span(code.co_firstlineno, code.co_firstlineno, 0, 0)
