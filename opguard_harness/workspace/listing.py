"""Everything in the state folder as one list, newest first: results, what is unfinished, what failed, what is damaged.

A folder is looked into only when its row is shown or asked about, so that a list of hundreds stays instant. Standard library
only. What is no folder of ours is left out; what is ours and cannot be read is a row that says so.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from opguard_core.errors import TraceFormatError
from opguard_core.trace.files import read_checked
from opguard_harness.access.traces import trace_folder
from opguard_harness.config import runs_dir
from opguard_harness.workspace.stored import ANSWER_FILE

KINDS = ("compare", "run", "preflight", "confirm")
STATES = ("queued", "running", "succeeded", "failed", "cancelled", "lost", "damaged")
UNFINISHED = ("queued", "running")
MAX_ANSWER_BYTES = 64 << 20
_KIND_OF = {
    "compare": "compare",
    "align": "compare",
    "run_guarded": "run",
    "launch_preflight": "preflight",
    "confirm_difference": "confirm",
}
_PARTIAL = re.compile(r"\.(?P<id>.+)\.partial-(?P<pid>\d{1,10})-[0-9a-f]{6}")
_FAILED = re.compile(r"(?P<id>.+)\.failed(?:-\d{1,5})?")
_STAMP = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)-")
_FRESH = re.compile(r"\d{8}-\d{6}-.+-[0-9a-f]{6}")  # as ``config.fresh_name`` makes it
_NAME = re.compile(r"\.?[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_VERDICT = re.compile(r"diverged|identical|inconclusive")
_MODE = re.compile(r"[a-z]{1,20}")


@dataclass(frozen=True)
class JobFacts:
    """What a list says about a job.

    Attributes:
        id: The job's, and that of the result folder it makes.
        tool: The tool it carries out.
        state: As `get_job` would say it now.
        created_s: When it was asked for, in seconds since 1970.
        case: The case that it was asked for in; may be empty.
    """

    id: str
    tool: str
    state: str
    created_s: float
    case: str = ""


@dataclass(frozen=True)
class Entry:
    """One row.

    Attributes:
        id: What other tools take.
        created_s: Seconds since 1970.
        path: Result folder; None of a job that has none.
        job: The job that made it or makes it, if one did.
        found: State told by the folder's name: "", running, failed or lost.
    """

    id: str
    created_s: float
    path: Path | None
    job: JobFacts | None = None
    found: str = ""

    @property
    def place(self) -> tuple[float, str]:
        """Where it stands in the list."""
        return self.created_s, self.id

    @property
    def kind(self) -> str:
        """One of ``KINDS``."""
        if self.job is not None and self.job.tool in _KIND_OF:
            return _KIND_OF[self.job.tool]
        holds_answer = self.path is not None and (self.path / ANSWER_FILE).exists()
        named = re.search(r"(compare|preflight|confirm|align)", self.id)
        told = _KIND_OF.get(named[1], named[1]) if named else "run"
        return "compare" if holds_answer and told != "confirm" else told  # a replay has an answer, too, and is none of the comparisons

    @property
    def state(self) -> str:
        """One of ``STATES``."""
        whole = self.path is not None and not self.found
        if self.job is not None and not (whole and self.job.state in ("succeeded", "lost")):
            return self.job.state  # results that are whole count, even if the supervisor did not live to say so
        return self.found or ("damaged" if self._told is None else "succeeded")

    @property
    def verdict(self) -> str:
        """Of a finished comparison; else empty."""
        return str((self._told or {}).get("verdict", "")) if not self.found else ""

    @property
    def mode(self) -> str:
        """How much was recorded; empty where that is unknown."""
        return str((self._told or {}).get("mode", ""))

    @property
    def created(self) -> str:
        """UTC, ISO 8601, in seconds; empty where that is unknown, or no year that a date can have."""
        try:
            when = datetime.fromtimestamp(self.created_s, timezone.utc)
        except (OverflowError, OSError, ValueError):
            return ""
        return when.strftime("%Y-%m-%dT%H:%M:%SZ") if self.created_s else ""

    @cached_property
    def _told(self) -> dict[str, str] | None:
        """Verdict and mode as its files tell them; None where they are not what we wrote."""
        if self.path is None:
            return {}
        answer = self.path / ANSWER_FILE
        if os.path.lexists(answer):
            return _answer(answer)
        trace = _trace_in(self.path)
        return None if trace is None else {"mode": _mode(json_object(trace / "manifest.json"))}


def entries(jobs: Iterable[JobFacts] = ()) -> list[Entry]:
    """All rows, newest first; a job and the folder it made are one row.

    Args:
        jobs: The jobs of the state folder.
    """
    by_id = {job.id: job for job in jobs}
    rows: dict[str, Entry] = {}
    for entry in _folders():
        owner = by_id.get(entry.id)
        if owner is None:
            failed = _FAILED.fullmatch(entry.id)
            if failed is not None and failed["id"] in by_id:
                continue  # what a failed job left; the job's own row says that it failed
        else:
            entry = Entry(entry.id, owner.created_s, entry.path, owner, entry.found)
        held = rows.get(entry.id)
        if held is None or held.found:  # a finished folder stands before an unfinished one of the same name
            rows[entry.id] = entry
    for job in by_id.values():
        rows.setdefault(job.id, Entry(job.id, job.created_s, None, job))
    return sorted(rows.values(), key=lambda entry: entry.place, reverse=True)


def _folders() -> Iterator[Entry]:
    """Rows of the result folders, in any order."""
    base = runs_dir()
    try:
        with os.scandir(base) as listed:
            found = [(item.name, item.stat(follow_symlinks=False).st_mtime) for item in listed if item.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    for name, changed_s in found:
        path = base / name
        partial, failed = _PARTIAL.fullmatch(name), _FAILED.fullmatch(name)
        if not _NAME.fullmatch(partial["id"] if partial is not None else name):
            continue  # no name that we give; it would be an id that no call takes, or a sentence
        if partial is not None:
            state = "running" if _alive(int(partial["pid"])) else "lost"
            yield Entry(partial["id"], _stamp(partial["id"], changed_s), path, found=state)
        elif failed is not None:
            yield Entry(name, _stamp(name, changed_s), path, found="failed")
        elif not name.startswith(".") and _is_ours(path):
            yield Entry(name, _stamp(name, changed_s), path)


def meant_for(name: str) -> str:
    """Id of the result that a folder of something unfinished or failed was to become; empty for every other folder."""
    left = _PARTIAL.fullmatch(name) or _FAILED.fullmatch(name)
    return left["id"] if left is not None else ""


def _is_ours(path: Path) -> bool:
    """Whether a folder holds an answer or a trace, or looks as if it had held one."""
    return _FRESH.fullmatch(path.name) is not None or os.path.lexists(path / ANSWER_FILE) or _trace_in(path) is not None


def _trace_in(path: Path) -> Path | None:
    """The trace of a folder; None if it has none that may be looked at."""
    try:
        return trace_folder(path)
    except OSError:
        return None


def _stamp(name: str, changed_s: float) -> float:
    """When a folder was made: as its name says, in local time, else when it was changed."""
    said = _STAMP.match(name)
    if said is None:
        return changed_s
    year, month, day, hour, minute, second = map(int, said.groups())
    try:
        return datetime(year, month, day, hour, minute, second).timestamp()
    except (OverflowError, OSError, ValueError):
        return changed_s


def _alive(pid: int) -> bool:
    """Whether a process of that number exists."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _answer(path: Path) -> dict[str, str] | None:
    """Verdict and mode of an answer; None if it is none."""
    found = json_object(path)
    verdict, mode = str(found.get("verdict", "")), _mode(found)
    return {"verdict": verdict, "mode": mode} if _VERDICT.fullmatch(verdict) and mode else None


def _mode(found: dict[str, Any]) -> str:
    """The mode of an answer or a manifest: one word, whatever stands there."""
    mode = str(found.get("mode", ""))
    return mode if _MODE.fullmatch(mode) else ""


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty if it is none."""
    try:
        found = json.loads(read_checked(path, limit=MAX_ANSWER_BYTES))
    except (TraceFormatError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
