"""The ends of what a job and its programs said, however long their lines are. The text is the programs': a caller fences it."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from opguard_core.plan.redact import redact_text
from opguard_harness.config import runs_dir
from opguard_harness.jobs.folder import JobFolder

READ_BYTES = 1 << 20  # a call reads no more than this, whatever the file is
_OUTPUTS = ("stdout", "stderr")
_DEPTH = 3
_NAME = re.compile(r"[a-z0-9-]{1,60}")
_WORD_CHARS = 500


@dataclass(frozen=True)
class Tail:
    """Lines of a log.

    Attributes:
        lines: Oldest first, without secrets; of one that is rewritten (a progress bar) what it showed last.
        begins: Offset in bytes of the first of them; 0 when nothing lies before it.
        size: Bytes of the whole log.
    """

    lines: list[str]
    begins: int
    size: int


def streams_of(job: str) -> dict[str, Path]:
    """The logs of a job by name: ``log`` is its own, ``reference-stderr`` and such are its programs'.

    Raises:
        JobNotFound: There is no such job.
    """
    folder = JobFolder.of(job)
    found = {"log": folder.log}
    bases = (*sorted(runs_dir().glob(f"{job}.failed*")), *sorted(runs_dir().glob(f".{job}.partial-*")), runs_dir() / job)
    for base in bases:
        for output in _OUTPUTS:
            for depth in range(_DEPTH):
                for path in sorted(base.glob("/".join(["[!.]*"] * depth + [f"{output}.txt"]))):
                    name = "-".join([*path.relative_to(base).parts[:-1], output])
                    if _NAME.fullmatch(name):  # a program may have made any folder there
                        found[name] = path
    for mark in folder.marks():  # programs in private copies, while they run
        place = Path(mark.partition("=")[2]).parent
        for output in _OUTPUTS:
            path = place / f"{output}.txt"
            if path not in found.values() and path.is_file() and _NAME.fullmatch(place.name):
                found.setdefault(f"{place.name}-{output}", path)
    return found


def tail(path: Path, num_lines: int, match: str = "", before: int | None = None) -> Tail:
    """The last lines of a file.

    Args:
        path: The file; a link is not followed.
        num_lines: At most so many.
        match: Only lines that contain this, in any case.
        before: Only what lies before this offset; None for all of it.

    Raises:
        OSError: It cannot be read, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(None, "it is no regular file", str(path))
        end = status.st_size if before is None else min(before, status.st_size)
        first = max(0, end - READ_BYTES)
        data = os.pread(descriptor, end - first, first)
    finally:
        os.close(descriptor)
    return _selected(data, first, num_lines, match.casefold(), status.st_size)


def _selected(data: bytes, first: int, num_lines: int, match: str, size: int) -> Tail:
    """Lines of a piece of a log that begins at an offset; the first of them is left to the next call if its beginning is not here."""
    pieces = data.split(b"\n")
    if pieces and not pieces[-1]:
        pieces.pop()
    offset = first
    inside = bool(first) and len(pieces) == 1  # in the middle of one line, maybe of a secret in it
    if first and len(pieces) > 1:
        offset += len(pieces.pop(0)) + 1
    offsets, lines = [], []
    for piece in pieces:
        offsets.append(offset)
        lines.append(piece.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace"))
        offset += len(piece) + 1
    if inside:
        lines[0] = lines[0].partition(" ")[2] or lines[0][_WORD_CHARS:]
    # Masked before lines are chosen: one line of a private key does not look like one.
    places = list(zip(offsets, redact_text("\n".join(lines)).split("\n"), strict=True)) if lines else []
    fitting = [(at, line) for at, line in places if match in line.casefold()]
    shown = fitting[-num_lines:]
    searched_all = len(fitting) <= num_lines
    begins = (places[0][0] if places else first) if searched_all else shown[0][0]
    return Tail([line for _, line in shown], begins, size)
