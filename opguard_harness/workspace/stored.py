"""Find stored runs and comparisons by id or path. Standard library only: listing them must stay instant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_core.ids import SIDES
from opguard_harness.access.opened import opened
from opguard_harness.access.rules import current
from opguard_harness.access.traces import trace_folder
from opguard_harness.answer.schema import checked
from opguard_harness.config import fresh_name, private_dir, runs_dir
from opguard_harness.errors import FiltersUnapproved, OutsideRoots, SideNotFound

ANSWER_FILE = "answer.json"
MAX_ANSWER_BYTES = 64 << 20


def result_folder(job: str, stem: str) -> Path:
    """Where work leaves its results; not created.

    Args:
        job: Id of the job whose work it is, which names the folder; empty outside of jobs.
        stem: Begins a fresh name there.
    """
    return private_dir(runs_dir()) / (job or fresh_name(stem))


def trace_of(name: str) -> Path:
    """The trace directory of a run named by id or path.

    Raises:
        SideNotFound: There is no such run, or it is a comparison, which has two traces.
    """
    path = folder_of(name)
    trace = trace_folder(path)
    if trace is None:
        both = (path / ANSWER_FILE).exists()
        hint = f"Name {path / 'reference'} or {path / 'suspect'}." if both else "`list_runs` lists them."
        raise SideNotFound(f"{name[:120]!r} is {'a comparison of two runs' if both else 'no run and no trace directory'}.", hint=hint)
    return current().path(trace, "trace")


def side_of(name: str, side: str = "") -> Path:
    """The trace of a run, or of one side of a comparison.

    Args:
        name: A run or comparison, by id or path.
        side: "reference" or "suspect"; empty for a run.

    Raises:
        SideNotFound: There is no such thing, or a side was named and is not wanted, or the other way round.
    """
    if not (folder_of(name) / ANSWER_FILE).exists():
        if side:
            raise SideNotFound(f"{name[:120]!r} is no comparison, so it has no side.", hint="Leave `side` out, or name a comparison.")
        return trace_of(name)
    if not side:
        raise SideNotFound(f"{name[:120]!r} is a comparison of two runs.", hint="Name its `side`: reference or suspect.")
    return Path(answer_of(name)["trace"][side])


def answer_of(name: str) -> dict[str, Any]:
    """The stored answer of a comparison named by id or path; the traces that it names may be touched.

    Raises:
        SideNotFound: There is no such comparison, or its answer is not what we wrote.
        OutsideRoots: It names a trace that may not be read.
        FiltersUnapproved: It came out of a pack, and what it says rests on filters that nobody approved.
    """
    path = folder_of(name) / ANSWER_FILE
    try:
        answer = checked(json.loads(current().read(path, "comparison", MAX_ANSWER_BYTES).decode("ascii")))
    except OutsideRoots:
        raise
    except (OSError, ValueError, RecursionError, OpGuardError) as error:
        hint = "`list_runs` lists them."
        raise SideNotFound(f"{name[:120]!r} is no comparison: its answer cannot be read, or is not what was written.", hint=hint) from error
    mark = opened(path.parent)
    if mark is not None:
        if answer["filters"] and not mark.approved:
            count = len(answer["filters"])
            raise FiltersUnapproved(f"The answer of {name[:120]} rests on {count} filters that came with its pack and are off.")
        answer["trace"] = {side: str(mark.trace(side)) for side in SIDES}
    answer["trace"] = {side: str(current().path(answer["trace"][side], f"trace of the {side}")) for side in SIDES}
    return answer


def folder_of(name: str) -> Path:
    """A folder by id (one word, below the state folder) or by path.

    Raises:
        OutsideRoots: It may not be touched.
    """
    if name and "/" not in name and name not in (".", "..") and (runs_dir() / name).is_dir():
        return current().path(runs_dir() / name, "id")
    return current().path(name, "path")
