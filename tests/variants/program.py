"""One side of a case as text that can be edited, and where each of its statements went.

Every statement of the program as it was gets a number, written as a comment at the end of its line (``#@17``). Edits move,
copy and rewrite statements with their comments; `written` takes the comments off and says on which lines of which file the
statements of each number are now. So it is the edit that says where an expression has gone, not whoever looks for it.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import libcst as cst

_TAG = re.compile(r"[ \t]*#@(\d+)$")
_TAG_ANYWHERE = re.compile(r"#@\d+")


class Inapplicable(Exception):
    """The edit finds nothing in this program that it could edit."""


@dataclass(frozen=True)
class Spot:
    """Where a numbered statement, or the header of one, is.

    Attributes:
        file: POSIX path relative to the program's folder.
        first: First line, 1-based.
        last: Last line.
        tag: Its number.
        text: Its text.
    """

    file: str
    first: int
    last: int
    tag: int
    text: str


@dataclass
class Program:
    """Files of one side, being edited.

    Attributes:
        files: Text of every Python file by POSIX path, with tags.
        entry: The file that is started.
        names: Old name by new name: variables, functions, attributes. New names occur nowhere else.
        inlined: Text of the expression that a new variable stands for, by that variable.
        headers: Squashed text by squashed text of what replaced it, for loop headers.
        steps_added: Whether it runs longer than it did.
    """

    files: dict[str, str]
    entry: str
    names: dict[str, str] = field(default_factory=dict)
    inlined: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    steps_added: bool = False
    _fresh: int = 0

    @classmethod
    def read(cls, folder: Path, launch: list[str]) -> Program:
        """Read a folder and number its statements."""
        files = {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.py"))}
        entry = next(word for word in launch if word.endswith(".py")) if "-m" not in launch else launch[2].replace(".", "/") + ".py"
        counter = iter(range(1, 1 << 30))
        return cls({name: tag(text, counter) for name, text in files.items()}, entry)

    def fresh(self, stem: str) -> str:
        """A name that nothing in the program has."""
        while True:
            self._fresh += 1
            name = f"{stem.rstrip('_')}_v{self._fresh}"
            if not any(re.search(rf"\b{name}\b", text) for text in self.files.values()):
                return name

    def modules(self) -> dict[str, cst.Module]:
        """Every file parsed."""
        return {name: cst.parse_module(text) for name, text in self.files.items()}

    def written(self) -> tuple[dict[str, str], list[Spot]]:
        """The files without tags, and where every numbered statement is."""
        plain: dict[str, str] = {}
        spots: list[Spot] = []
        for name, text in self.files.items():
            plain[name], found = untag(text)
            spots += [Spot(name, *rest) for rest in found]
        return plain, spots

    def write(self, original: Path, folder: Path) -> list[Spot]:
        """Write the edited program where ``original`` is copied to; says where the statements are."""
        shutil.copytree(original, folder, ignore=shutil.ignore_patterns("__pycache__"))
        plain, spots = self.written()
        for name, text in plain.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return spots

    def beside(self, file: str, stem: str) -> str:
        """Path of a new file in the folder of ``file``."""
        return str(PurePosixPath(file).with_name(stem + ".py"))

    def is_package_member(self, file: str) -> bool:
        """Whether files beside it are imported with a leading dot."""
        return str(PurePosixPath(file).with_name("__init__.py")) in self.files


class _Tagger(cst.CSTTransformer):
    def __init__(self, counter: Iterator[int]) -> None:
        super().__init__()
        self._counter = counter

    def _comment(self, space: cst.TrailingWhitespace) -> cst.TrailingWhitespace:
        old = space.comment.value + "  " if space.comment else ""
        return space.with_changes(whitespace=cst.SimpleWhitespace("  "), comment=cst.Comment(f"{old or ''}#@{next(self._counter)}"))

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        return updated_node.with_changes(trailing_whitespace=self._comment(updated_node.trailing_whitespace))

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        return updated_node.with_changes(trailing_whitespace=self._comment(updated_node.trailing_whitespace))

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.IndentedBlock:
        return updated_node.with_changes(header=self._comment(updated_node.header))


def tag(text: str, counter: Iterator[int]) -> str:
    """Number every statement line and every header of a compound statement."""
    return cst.parse_module(text).visit(_Tagger(counter)).code


def untag(text: str) -> tuple[str, list[tuple[int, int, int, str]]]:
    """Take the numbers off.

    Returns:
        The plain text, and (first line, last line, number, text) of everything that had one.
    """
    tags: dict[int, int] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        found = _TAG.search(line)
        if found:
            tags[number] = int(found.group(1))
            lines[number - 1] = line[: found.start()]
    plain = "\n".join(lines)
    assert not _TAG_ANYWHERE.search(plain), "a tag that does not end its line"
    statements = [node for node in ast.walk(ast.parse(plain)) if isinstance(node, ast.stmt)]
    spots = []
    for last, number in tags.items():
        # A header of a compound statement ends before its body; the innermost statement that holds the line begins last.
        holders = [node for node in statements if node.lineno <= last <= (node.end_lineno or 0)]
        first = max((node.lineno for node in holders), default=last)
        spots.append((first, last, number, "\n".join(lines[first - 1 : last]).strip()))
    return plain, spots


def spots_at(spots: list[Spot], file: str, line: int) -> list[Spot]:
    """The innermost numbered statement on a line of a file; several if several begin there."""
    holding = [spot for spot in spots if spot.file == file and spot.first <= line <= spot.last]
    first = max((spot.first for spot in holding), default=0)
    return [spot for spot in holding if spot.first == first]
