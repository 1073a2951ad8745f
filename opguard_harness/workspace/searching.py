"""Search the source texts that a run executed, in a child process with limits: no expression can hang the caller."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from opguard_harness.errors import SearchRefused

TIMEOUT_S = 10.0
MAX_TEXT_BYTES = 64 << 20
LINE_CHARS = 2_000
_CHILD = Path(__file__).with_name("line_search.py")


@dataclass(frozen=True)
class Hit:
    """One line."""

    file: str
    digest: str
    line: int
    text: str


def search_sources(
    trace: Path, pattern: str, *, regex: bool, fold: bool, files: str, skip: int, limit: int, libraries: bool = False
) -> tuple[list[Hit], int, int]:
    """Lines of executed source that match.

    Args:
        trace: The run's trace directory.
        pattern: Literal text, or a regular expression that is matched line by line.
        regex: It is an expression.
        fold: Upper and lower case are the same.
        files: Shell pattern of file names; empty for all.
        skip: Hits to pass over.
        limit: Hits to return.
        libraries: Look into library files as well, after the program's own; a pattern of file names always does.

    Returns:
        Hits in order of file and line, the program's own files first; how many there are; in how many files it was looked.

    Raises:
        SearchRefused: The expression does not compile or takes too long, or there is too much text.
        TraceFormatError: The trace cannot be read.
    """
    texts = _texts(trace, files, libraries=libraries or bool(files))
    order = {"pattern": pattern, "literal": not regex, "fold": fold, "texts": [text for _, _, text in texts], "skip": skip}
    found = _ask({**order, "limit": limit, "line_chars": LINE_CHARS})
    if "error" in found:
        raise SearchRefused(f"The expression does not compile: {found['error']}.", hint="Give literal text, without `regex`.")
    hits = []
    for number, line in found["hits"]:
        file, digest, text = texts[number]
        hits.append(Hit(file, digest, line, text.splitlines()[line - 1]))
    return hits, found["total"], len(texts)


def _texts(trace: Path, files: str, *, libraries: bool) -> list[tuple[str, str, str]]:
    """(file, digest, text) of what was executed and stored, the program's own in order of file, then that of libraries."""
    from opguard_core.trace.reader import Run
    from opguard_harness.workspace.executed import files_of, user_files

    run = Run.open(trace)
    own = frozenset().union(*(user_files(trace, number) for number in run.ranks))
    every = sorted({pair for rank in run.ranks.values() for pair in files_of(rank.frames) if pair[1]})
    mine, others = [pair for pair in every if pair[0] in own], [pair for pair in every if pair[0] not in own]
    named = [*mine, *others] if libraries or not mine else mine
    found = []
    used = 0
    for file, digest in named:
        if files and not fnmatchcase(file, files) and not fnmatchcase(file.rpartition("/")[2], files):
            continue
        text = run.source(digest)
        used += len(text)
        if used > MAX_TEXT_BYTES:
            raise SearchRefused(f"The run executed more than {MAX_TEXT_BYTES >> 20} MiB of source.", hint="Name files to look in.")
        found.append((file, digest, text))
    return found


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    """Have the child search.

    Raises:
        SearchRefused: It was ended by a limit.
    """
    command = [sys.executable, "-I", "-S", str(_CHILD)]
    try:
        done = subprocess.run(command, input=json.dumps(request).encode("ascii"), capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise _too_slow() from error
    if done.returncode != 0:
        raise _too_slow()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _too_slow() -> SearchRefused:
    return SearchRefused(
        "The expression takes too long or too much memory, and was ended.", hint="Give literal text, or name files to look in."
    )
