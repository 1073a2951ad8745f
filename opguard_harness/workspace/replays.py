"""Which replays of a comparison are stored: results of finished confirmations, made here or brought by a pack."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opguard_core.errors import OpGuardError
from opguard_core.evidence.refs import is_holder
from opguard_core.trace.files import read_checked
from opguard_harness.config import runs_dir, state_dir
from opguard_harness.workspace.cases import all_cases, cases_dir
from opguard_harness.workspace.evidence import ARTEFACTS
from opguard_harness.workspace.stored import ANSWER_FILE, answer_of

OUTCOMES = ("same place", "another place", "not reproduced")
_MAX_BYTES = 64 << 20
_PREFIX = "confirm-"


def is_replay(job: str) -> bool:
    """Whether a job id is that of a confirmation."""
    return job.startswith(_PREFIX) and is_holder(job)


def replays(comparison: str, answer: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Results of finished `confirm_difference` jobs about a comparison, or about another one of the same two traces.

    The one that ended last comes first: as its result says, since times of files change when somebody copies them.
    """
    found = sorted(_finished(comparison, answer), key=lambda one: one[0], reverse=True)
    yield from ((name, told) for _, name, told in found)


def _finished(comparison: str, answer: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """When each ended, its name and what it says."""
    for folder in _folders():
        path = folder / ARTEFACTS["result"]
        if not path.is_file() or path.is_symlink():
            continue
        try:
            result = json.loads(read_checked(path, limit=_MAX_BYTES))
        except (ValueError, RecursionError, OpGuardError):
            continue  # what cannot be read says nothing about any comparison
        told = result.get("result") if isinstance(result, dict) else None
        if (
            isinstance(told, dict)
            and told.get("outcome") in OUTCOMES
            and isinstance(told.get("steps"), list)
            and all(type(step) is int for step in told["steps"])
            and _is_about(told.get("confirms"), comparison, answer)
        ):
            yield str(result.get("ended", "")), folder.name, told


def _folders() -> list[Path]:
    """Job folders of confirmations: those made here, then what packs brought."""
    jobs = state_dir() / "jobs"
    own = sorted(path for path in jobs.iterdir() if is_replay(path.name)) if jobs.is_dir() else []
    brought = [
        cases_dir() / case.id / "jobs" / noted.job
        for case in all_cases()[0]
        if case.is_opened
        for noted in case.jobs
        if is_replay(noted.job)
    ]
    found: dict[str, Path] = {}
    for path in (*own, *brought):
        found.setdefault(path.name, path)
    return list(found.values())


def _is_about(confirms: Any, comparison: str, answer: Mapping[str, Any]) -> bool:
    """Whether a replay is of that comparison, or of another one that has the same traces and the same first difference."""
    if confirms == comparison:
        return True
    if not isinstance(confirms, str) or not is_holder(confirms) or not (runs_dir() / confirms / ANSWER_FILE).is_file():
        return False
    try:
        other = answer_of(confirms)
    except OpGuardError:
        return False
    alike = [(one.get("digests"), one["pivot"] and (one["pivot"]["seq"], one["pivot"]["slot"])) for one in (other, answer)]
    return alike[0] == alike[1]
