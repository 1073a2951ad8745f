"""What a job has left in the folder of runs: a whole result that nobody announced, or traces of what was not finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_harness.access.rules import Access, using
from opguard_harness.access.traces import trace_folder
from opguard_harness.config import runs_dir
from opguard_harness.workspace.stored import answer_of

_NAMES = ("reference", "suspect", "run", "")


def recovered(job: str) -> dict[str, Any] | None:
    """The result of a job whose supervisor died when everything was written; None if not everything was.

    A result folder gets its name when it is whole, so having it is enough.
    """
    folder = runs_dir() / job
    if not folder.is_dir():
        return None
    following: list[dict[str, Any]] = []
    told = f"{job} has succeeded; its supervisor ended before it could say so."
    if (folder / "answer.json").exists():
        try:
            with using(Access()):  # how a job stands is the same whoever asks; no more than the verdict is told
                verdict = str(answer_of(job)["verdict"])
        except OpGuardError:
            return None
        following = [{"tool": "first_difference", "arguments": {"comparison": job}, "why": "what it found"}]
        return _result(f"{verdict}: {told}", following, comparison=job, verdict=verdict)
    trace = trace_folder(folder)
    if trace is None:
        return None
    return _result(told, following, run=job, trace=str(trace))


def _result(summary: str, following: list[dict[str, Any]], **data: str) -> dict[str, Any]:
    return {"summary": summary, **data, "evidence": [], "next": following, "truncated": None}


def left_by(job: str) -> tuple[Path, ...]:
    """Traces of a job that did not succeed, as far as they can be read."""
    found = []
    for base in (*sorted(runs_dir().glob(f".{job}.partial-*")), *sorted(runs_dir().glob(f"{job}.failed*"))):
        found += [trace for name in _NAMES if (trace := trace_folder(base / name)) is not None]
    return tuple(dict.fromkeys(found))
