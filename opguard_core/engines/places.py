"""Where in the program an event is: interned Python stacks and frames.

A stack is walked as (code object, ``f_lasti``) pairs and looked up; only a new one is turned into rows. No frame is kept:
a frame holds the program's locals. Our own frames are left out, everywhere.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from types import CodeType, FrameType
from typing import Any, NamedTuple

from opguard_core.engines.contexts import Situation, situation
from opguard_core.engines.inductor.fx_code import lines_of_fx
from opguard_core.engines.inductor.origins import FX_FILE, Line
from opguard_core.engines.protocol import EventSink
from opguard_core.engines.shims import OWN_FILENAME
from opguard_core.engines.sources import Positions, Source, Sources, Span, instruction_of
from opguard_core.trace.schema import FrameRow

USER, LIBRARY, TORCH, STDLIB = "user", "library", "torch", "stdlib"

_PACKAGE = str(Path(__file__).resolve().parents[1]) + "/"
_SITE_FOLDERS = ("site-packages", "dist-packages")
_TORCH_PACKAGES = frozenset({"torch", "triton", "functorch", "torchgen"})


class Stack(NamedTuple):
    """One interned stack.

    Attributes:
        stack: Row of STACKS, None if no Python frame was left.
        user_frame: Innermost user frame, row of FRAMES, or None.
        library_frame: Innermost frame if it is deeper than the user's, else None.
        situation: What the frames say about the phase.
    """

    stack: int | None
    user_frame: int | None
    library_frame: int | None
    situation: Situation

    def called_from(self, place: tuple[int | None, int | None, int | None] | None) -> Stack:
        """This stack of a thread that no frame of the program's led to, placed where it was set going; None: nowhere known."""
        if place is None:
            return self
        return Stack(*place, self.situation) if self.stack is None else self._replace(user_frame=place[1])


NO_STACK = Stack(None, None, None, Situation.NONE)


class NoPlaces:
    """Stands for `Places` where no operator is recorded: a trace without stacks and sources."""

    def of(self, frame: FrameType | None) -> Stack:
        """No stack, whatever the frame."""
        del frame
        return NO_STACK

    def words(self, frame: int | None) -> tuple[str, str]:
        """No words."""
        del frame
        return "", ""


class Places:
    """Interns frames and stacks and hands each new one to the sink, once.

    Args:
        sink: Where rows go.
        user_root: Folder that source files are named relative to.
    """

    def __init__(self, sink: EventSink, user_root: Path) -> None:
        self._sink = sink
        self._root = user_root.resolve()
        self._stacks: dict[tuple[int, ...], Stack] = {}
        self._rows: dict[tuple[int, ...], int] = {}  # frame rows -> row of STACKS
        self._frames: dict[tuple[int, int], tuple[int, str] | None] = {}
        self._num_frames = 0
        # Identity of a code object is its address: held so that no other takes it.
        self._codes: dict[int, CodeType] = {}
        self._files: dict[str, tuple[str, str]] = {}
        self._sources, self._positions = Sources(), Positions()
        self._kept: set[str] = set()
        self._lines: dict[tuple[str, int, str], tuple[int, str]] = {}
        self._words: dict[int, tuple[str, str]] | None = None
        self.generated: Any = None  # what knows which lines of the program a line of generated code comes from, see `inductor.watch`
        self._lock = threading.RLock()
        self._stdlib = sysconfig.get_paths()["stdlib"] + "/"

    def of(self, frame: FrameType | None) -> Stack:
        """The stack that ends in ``frame`` (innermost).

        Cost: about 0.12 us a frame once known; no reference to a frame survives the call.
        """
        key: list[int] = []
        walked = frame
        while walked is not None:
            key.append(id(walked.f_code))
            key.append(walked.f_lasti)
            walked = walked.f_back
        known = self._stacks.get(tuple(key))
        return known if known is not None else self._intern(tuple(key), frame)

    def remember_words(self) -> None:
        """From now on remember what `words` answers; before the first frame."""
        self._words = {}

    def words(self, frame: int | None) -> tuple[str, str]:
        """Function and expression of a row of FRAMES, empty for None."""
        return ("", "") if frame is None or self._words is None else self._words[frame]

    def _intern(self, key: tuple[int, ...], frame: FrameType | None) -> Stack:
        with self._lock:
            rows: list[tuple[int, str]] = []  # innermost first
            codes: list[CodeType] = []
            walked = frame
            while walked is not None:
                code = walked.f_code
                self._codes.setdefault(id(code), code)
                codes.append(code)
                rows += self._made_from(walked)
                row = self._frame(code, walked.f_lasti, walked)
                if row is not None:
                    rows.append(row)
                walked = walked.f_back
            ids = tuple(number for number, _ in reversed(rows))
            stack: int | None = None
            if ids:
                stack = self._rows.get(ids)
                if stack is None:
                    stack = self._rows[ids] = len(self._rows)
                    self._sink.stack(stack, ids)
            user = next((number for number, category in rows if category == USER), None)
            library = rows[0][0] if rows and rows[0][1] != USER else None
            made = Stack(stack, user, library, situation(codes))
            self._stacks[key] = made
            return made

    def _made_from(self, frame: FrameType) -> list[tuple[int, str]]:
        """Rows of the lines that generated code was made from, innermost first, as if it had called them; none for other code."""
        filename = frame.f_code.co_filename
        stacks: Iterable[tuple[Line, ...]] = ()
        if filename.startswith(FX_FILE):
            stacks = (lines_of_fx(frame),)
        elif self.generated is not None:
            stacks = self.generated.lines(frame)
        return [self._line(line) for stack in reversed(list(stacks)) for line in reversed(stack)]

    def _line(self, line: Line) -> tuple[int, str]:
        """Row and category of a line of which nothing more is known."""
        key = (line.file, line.line, line.function)
        known = self._lines.get(key)
        if known is None:
            shown, category = self._file(line.file)
            source, span = self._sources.of(line.file), Span(line.line, line.line, 0, 0)
            known = self._lines[key] = (self._row(shown, category, line.function, source, span, 0), category)
        return known

    def _frame(self, code: CodeType, lasti: int, frame: FrameType) -> tuple[int, str] | None:
        """Row and category of one frame, None for our own."""
        key = (id(code), lasti)
        if key in self._frames:
            return self._frames[key]
        lasti = instruction_of(code, lasti)
        place = (id(code), lasti)
        if place in self._frames:
            self._frames[key] = self._frames[place]
            return self._frames[key]
        made: tuple[int, str] | None = None
        filename = code.co_filename
        if filename != OWN_FILENAME and not filename.startswith(_PACKAGE):
            shown, category = self._file(filename)
            source = self._sources.of(filename, frame.f_globals)
            function = getattr(code, "co_qualname", code.co_name)
            number = self._row(shown, category, function, source, self._positions.of(code, lasti), lasti)
            made = (number, category)
        self._frames[key] = self._frames[place] = made
        return made

    def _row(self, shown: str, category: str, function: str, source: Source, span: Span, lasti: int) -> int:
        """A new row of FRAMES."""
        expression, statement = source.locate(span)
        text = source.cut(expression).strip()
        number = self._num_frames
        self._num_frames += 1
        if self._words is not None:
            self._words[number] = (function, text)
        self._sink.frame(
            FrameRow(
                number,
                shown,
                category,
                function,
                expression.line,
                expression.end_line,
                expression.column,
                min(expression.end_column, 10**6),
                lasti,
                text,
                source.statement_text(statement).strip(),
                source.digest,
            )
        )
        if source.digest and source.digest not in self._kept:
            self._kept.add(source.digest)
            self._sink.source(source.digest, source.text)
        return number

    def _file(self, filename: str) -> tuple[str, str]:
        """Name of a file as traces write it, and its category."""
        known = self._files.get(filename)
        if known is None:
            known = self._files[filename] = self._name(filename)
        return known

    def _name(self, filename: str) -> tuple[str, str]:
        if filename.startswith(FX_FILE):
            return FX_FILE, TORCH
        if self.generated is not None and (generated := self.generated.is_generated(filename)) is not None:
            return generated, TORCH
        if filename.startswith("<"):
            return filename, STDLIB if filename.startswith("<frozen ") else USER
        parts = PurePosixPath(filename.replace("\\", "/")).parts
        for folder in _SITE_FOLDERS:
            if folder in parts:
                inside = parts[len(parts) - parts[::-1].index(folder) :]
                return "/".join(inside), TORCH if inside and inside[0] in _TORCH_PACKAGES else LIBRARY
        path = Path(filename).absolute()
        for candidate in (path, _resolved(path)):
            if candidate.is_relative_to(self._root):
                return candidate.relative_to(self._root).as_posix(), USER
        for prefix in (self._stdlib, sys.base_prefix + "/lib/"):
            if filename.startswith(prefix):
                return f"python/{filename[len(prefix) :]}", STDLIB
        copied = _copied_package(path)
        if copied is not None:
            return copied, TORCH if copied.split("/")[0] in _TORCH_PACKAGES else LIBRARY
        return _resolved(path).as_posix(), USER


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except OSError:
        return path


def _copied_package(path: Path) -> str | None:
    """Name of a file inside a copy of an installed package that another import path entry shadows, None if it is none.

    An environment copied to try a change out must name its files as the original does, or nothing in it could be compared.
    """
    sites = [Path(entry) for entry in sys.path if Path(entry).name in _SITE_FOLDERS]
    for entry in sorted(filter(None, sys.path), key=len, reverse=True):
        if path.is_relative_to(entry):
            inside = path.relative_to(entry)
            if len(inside.parts) > 1 and any((site / inside.parts[0]).is_dir() for site in sites):
                return inside.as_posix()
    return None
