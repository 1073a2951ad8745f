"""What a comparison ran, kept beside its answer so that it can be run again: folders, command lines, names of variables.

Values of variables and words that look like secrets are not kept; a side that had some cannot be run from the record alone.
"""

from __future__ import annotations

import json
import tokenize
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opguard_core.errors import TraceFormatError
from opguard_core.ids import SIDES
from opguard_core.plan.redact import redact_argv
from opguard_core.trace.files import read_checked, write_atomic
from opguard_core.trace.sources import source_digest
from opguard_harness.access.opened import refuse_opened
from opguard_harness.answer.plain import dumps
from opguard_harness.compare.checkout import commit_id
from opguard_harness.compare.request import CompareRequest
from opguard_harness.compare.sides import ProgramSide, Side
from opguard_harness.errors import NotReplayable

FILE = "programs.json"
FORMAT = 1
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Program:
    """One side that was run.

    Attributes:
        name: "reference" or "suspect".
        folder: The folder that was named.
        argv: Its command line, the interpreter spelled ``python``.
        env: Names of the variables that were set for it.
        commit: The commit that was checked out; empty for the folder as it was.
        whole: The command line is all there; False where words were left out of the record.
    """

    name: str
    folder: Path
    argv: tuple[str, ...]
    env: tuple[str, ...]
    commit: str
    whole: bool


@dataclass(frozen=True)
class Programs:
    """Both sides of a comparison and how they were observed."""

    reference: Program
    suspect: Program
    deterministic: bool
    python: Path | None
    timeout_s: float | None

    @property
    def both(self) -> tuple[Program, Program]:
        """Reference and suspect."""
        return self.reference, self.suspect


def write_programs(folder: Path, sides: tuple[Side, Side], request: CompareRequest) -> None:
    """Keep what was run beside the answer; a side that is a trace is kept as one.

    Args:
        folder: The result folder.
        sides: As resolved.
        request: The comparison.
    """
    capture = request.capture
    document = {
        "format": FORMAT,
        **{side.name: _side(side, asked.commit) for side, asked in zip(sides, (request.reference, request.suspect), strict=True)},
        "deterministic": capture.deterministic,
        "python": None if capture.python is None else str(capture.python),
        "timeout_s": capture.timeout_s,
    }
    write_atomic(folder / FILE, dumps(document, indent=1).encode("ascii") + b"\n")


def _side(side: Side, commit: str) -> dict[str, Any]:
    if not isinstance(side, ProgramSide):
        return {"kind": "trace", "trace": str(side.trace)}
    words = redact_argv(side.argv)
    return {
        "kind": "program",
        "folder": str(side.origin),
        "argv": words,
        "whole": tuple(words) == side.argv,
        "env": sorted(side.env),
        "commit": commit_id(side.origin, commit) if commit else "",
    }


def read_programs(folder: Path) -> Programs:
    """What a comparison ran.

    Args:
        folder: Its result folder.

    Raises:
        NotReplayable: A side was a trace, or there is no record.
        OpenedReadOnly: It came out of a pack.
    """
    refuse_opened(folder, "comparison")
    try:
        document = json.loads(read_checked(folder / FILE, limit=MAX_BYTES))
        kinds = {name: document[name]["kind"] for name in SIDES}
        traces = [name for name, kind in kinds.items() if kind != "program"]
        if not traces:
            found = [_read(name, document[name]) for name in SIDES]
            python, timeout = document["python"], document["timeout_s"]
            return Programs(
                found[0],
                found[1],
                bool(document["deterministic"]),
                None if python is None else Path(python),
                None if timeout is None else float(timeout),
            )
    except (TraceFormatError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise NotReplayable(
            "This comparison has no record of what it ran, so nothing can be replayed.", hint="Compare the programs again, then confirm."
        ) from error
    verb = "is a trace" if len(traces) == 1 else "are traces"
    raise NotReplayable(
        f"The {' and the '.join(traces)} of this comparison {verb}; a trace cannot run again.",
        hint="Name the programs to `compare`, then confirm that comparison.",
    )


def is_replayable(folder: Path) -> bool:
    """Whether a comparison can be run again from its record alone."""
    try:
        return all(program.whole and not program.env for program in read_programs(folder).both)
    except NotReplayable:
        return False


def _read(name: str, value: dict[str, Any]) -> Program:
    argv, env = (tuple(str(word) for word in value[key]) for key in ("argv", "env"))
    if not argv:
        raise ValueError("a program has a command line")
    return Program(name, Path(str(value["folder"])), argv, env, str(value["commit"]), bool(value["whole"]))


def changed_files(program: Program, folder: Path, trace: Path) -> list[str]:
    """Files of a program that are not any more what a run of it executed.

    Args:
        program: The side.
        folder: Its folder as it would run now.
        trace: The trace of the run.

    Returns:
        Their names as places name them.

    Raises:
        TraceFormatError: The trace cannot be read.
    """
    from opguard_core.trace.reader import Run

    run = Run.open(trace)
    executed: set[tuple[str, str]] = set()
    for rank in run.ranks.values():
        columns, categories = rank.frames.columns, rank.frames.strings["category"]
        executed |= {
            (file, source)
            for file, source, category in zip(
                columns["file"].tolist(), columns["source"].tolist(), columns["category"].tolist(), strict=True
            )
            if source and categories[int(category)] == "user" and not file.startswith("<")
        }
    # What lies elsewhere and is gone was made by the run itself: a temporary file, generated code.
    looked_at = [(file, source) for file, source in executed if not Path(file).is_absolute() or Path(file).exists()]
    return sorted(file for file, source in looked_at if _digest(folder / file) != source)


def _digest(path: Path) -> str:
    """Digest of a file's text, read as traces read it; empty where it cannot be read."""
    try:
        with tokenize.open(path) as stream:
            return source_digest(stream.read())
    except (OSError, SyntaxError, ValueError):
        return ""
