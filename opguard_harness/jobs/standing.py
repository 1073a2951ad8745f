"""How a job stands, judged from its folder alone: whoever asks, and however often, gets the same answer and changes nothing.

    queued     nobody has begun, or it waits for a lease
    running    its supervisor lives
    succeeded, failed, cancelled    its result says so
    lost       its supervisor has gone without a result

A supervisor on this machine is asked for by its process; one on another machine (a shared state folder) by its heartbeat. A
whole result folder counts as success even if the supervisor died before it could say so. Standard library only.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from opguard_harness.compare.family import Member, marked
from opguard_harness.config import HEARTBEAT_S, now
from opguard_harness.jobs.folder import JobFolder
from opguard_harness.jobs.leftovers import left_by, recovered
from opguard_harness.jobs.owner import Owner, boot_id

UNFINISHED = ("queued", "running")
_BEATS = 2
_BEATS_TO_START = 12  # the first sign of life is the starter's; the next one comes when the supervisor is up
FINAL = ("succeeded", "failed", "cancelled", "lost")


@dataclass(frozen=True)
class Standing:
    """A job as it is now.

    Attributes:
        job: Its id.
        tool: The tool that started it.
        state: See above.
        created: When it was asked for, UTC, ISO 8601.
        elapsed_s: Seconds from then to its end, or to now.
        phase: What it does; of a lost one what it did last.
        done: Training steps of the phase that are done; None where unknown.
        planned: Steps of the phase; None where unknown.
        waits: Of a queued one: what it waits for, in our words.
        result: The tool's whole result, of one that succeeded.
        error: {"slug", "text", "fix"} of one that failed.
        reason: The error in a sentence of ours.
        ways_out: Calls that lead out of it, as plain values.
        left: Traces of one that did not succeed.
        ending: Somebody asked for its end and it has not come yet.
        silent_s: Seconds since the last sign of life of one that runs here; 0 if that is as it should be.
        case: The case it was first asked for in; may be empty.
        request: Digest of what was asked for.
        code: Digest of the code it was asked for with.
        settings: Digests of the settings files: as it was asked for, and as they were when it had succeeded.
    """

    job: str
    tool: str
    state: str
    created: str
    elapsed_s: float
    phase: str = ""
    done: int | None = None
    planned: int | None = None
    waits: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    error: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    ways_out: tuple[dict[str, Any], ...] = ()
    left: tuple[Path, ...] = ()
    ending: bool = False
    silent_s: float = 0.0
    case: str = ""
    request: str = ""
    code: str = ""
    settings: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""
        return self.state in FINAL


def standing(job: str, *, look: bool = True) -> Standing:
    """Judge one job.

    Args:
        job: Its id.
        look: Look for the traces it left, if it did not succeed; a list of many jobs does not show them.

    Raises:
        JobNotFound: There is no such job.
        JobDamaged: Nobody can tell what it was.
    """
    folder = JobFolder.of(job)
    spec = folder.spec()
    works = at_work(folder, spec)  # asked first: one that ends in between has written its result by then
    outcome = folder.outcome()
    state = folder.state()
    facts: dict[str, Any] = {name: spec[name] for name in ("job", "tool", "created", "case", "request", "code")}
    facts["settings"] = (spec["settings"], *([_text(outcome.get("settings"))] if outcome else []))
    facts.update(phase=_text(state.get("phase")), done=_count(state.get("done")), planned=_count(state.get("planned")))
    if outcome is not None:
        ended = _elapsed(spec["created"], outcome["ended"])
        left = left_by(job) if look and outcome["state"] != "succeeded" else ()
        told: dict[str, Any] = {"result": outcome.get("result") or {}, "error": outcome.get("error") or {}}
        if outcome["state"] == "failed":
            told.update(reason=outcome["summary"], ways_out=tuple(outcome["next"]))
        return Standing(**facts, state=outcome["state"], elapsed_s=ended, left=left, **told)
    if works:
        waits = _text(state.get("waits"))
        queued = not state or bool(waits)
        return Standing(
            **facts,
            state="queued" if queued else "running",
            elapsed_s=_elapsed(spec["created"], now()),
            waits=waits,
            ending=folder.asked_to_end(),
            silent_s=_silence(folder),
        )
    seen = _elapsed(spec["created"], _text(state.get("at")) or spec["created"])
    found = recovered(job)
    if found is not None:
        return Standing(**facts, state="succeeded", elapsed_s=seen, result=found)
    return Standing(**facts, state="cancelled" if folder.asked_to_end() else "lost", elapsed_s=seen, left=left_by(job) if look else ())


def at_work(folder: JobFolder, spec: dict[str, Any]) -> bool:
    """Whether somebody carries a job out, or is about to."""
    if not folder.has_supervisor():
        starter = Owner.read(spec.get("starter"))
        if starter is not None and _lives(starter, folder):
            return True
        if not folder.has_supervisor():  # asked again: it may have named one and ended in between
            return False
    owner = folder.supervisor()
    return _fresh(folder) if owner is None else _lives(owner, folder)


def _lives(owner: Owner, folder: JobFolder) -> bool:
    """Whether that process runs, as far as this machine can tell."""
    return owner.alive() if owner.here else _fresh(folder, _BEATS if folder.state() else _BEATS_TO_START)


def _silence(folder: JobFolder) -> float:
    """Seconds without a sign of life that two heartbeats do not explain; 0 where nobody can tell."""
    beat = folder.last_beat()
    if beat is None or beat.boot != boot_id() or _fresh(folder):
        return 0.0
    return round((time.monotonic_ns() - beat.at_ns) / 1e9, 1)


def _fresh(folder: JobFolder, beats: int = _BEATS) -> bool:
    """Whether a sign of life is younger than so many heartbeats."""
    beat = folder.last_beat()
    if beat is None:
        return False
    if beat.boot == boot_id() and beat.boot:
        return time.monotonic_ns() - beat.at_ns < beats * HEARTBEAT_S * 1e9
    with tempfile.TemporaryFile(dir=folder.path) as probe:  # another machine wrote it: the file system's clock is the one in common
        return os.fstat(probe.fileno()).st_mtime_ns - beat.written_ns < beats * HEARTBEAT_S * 1e9


def processes_of(job: str) -> set[Member]:
    """Processes on this machine that programs of a job have left or are; its supervisor is not among them."""
    folder = JobFolder.of(job)
    owner = folder.supervisor()
    if owner is not None and not owner.this_boot:
        return set()
    return marked(folder.marks(), owner.started if owner else "0")


def _elapsed(begin: str, end: str) -> float:
    """Seconds between two times; 0 if one of them is none."""
    try:
        first, last = (datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ") for text in (begin, end))
    except ValueError:
        return 0.0
    return max(0.0, round((last - first).total_seconds(), 1))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
