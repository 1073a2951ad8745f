"""What a call about a job answers with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from opguard_harness.interface.declaration import Evidence, JobResult, Next, Truncated

if TYPE_CHECKING:
    from opguard_harness.jobs.ending import Ended
    from opguard_harness.jobs.standing import Standing

_ASKED_BEFORE = " (Asked for before; another `token` runs it anew.)"
MOST_WAIT_S = 45  # below the 60 s after which some clients give a call up
_OURS = ("summary", "evidence", "next", "truncated")


def job_result(now: Standing, *, asked: bool = False, new: bool = False, changed: bool = False) -> JobResult:
    """A job as it is.

    Args:
        now: How it stands.
        asked: This call asked for its work.
        new: It started it.
        changed: It is not finished, and the sources have changed since it was asked for.
    """
    common: dict[str, Any] = {"job": now.job, "tool": now.tool, "state": now.state, "phase": now.phase, "elapsed_s": now.elapsed_s}
    common["steps"] = {"done": now.done, "planned": now.planned} if now.done is not None or now.planned is not None else {}
    if now.state == "succeeded":
        found = JobResult(**common, **_found(now.result))
        return replace(found, summary=f"{found.summary}{_ASKED_BEFORE}") if asked and not new else found
    note = " The sources have changed since it was asked for; another `token` runs them as they are." if changed else ""
    return JobResult(
        **common,
        summary=_summary(now, new=new) + note,
        error=now.error or None,
        evidence=_evidence(now),
        left=[str(path) for path in now.left],
        next=_following(now),
    )


def ended_result(ended: Ended) -> JobResult:
    """A job that somebody wanted ended.

    Args:
        ended: What came of it.
    """
    found = job_result(ended.after)
    swept = f" {ended.processes} of its processes had outlived it and were ended." if ended.processes else ""
    if ended.remain:
        swept += f" {ended.remain} cannot be ended: they wait in the kernel."
    if not ended.after.finished:
        where = "It runs on another machine" if not ended.remain else "It has not ended yet"
        return replace(found, summary=f"{ended.after.job} was asked to end. {where}; `get_job` says when it has ended.")
    if ended.after.state == "succeeded":
        said = f"Nothing to cancel: {found.summary}" if not swept else f"{swept.strip()} {found.summary}"
        return replace(found, summary=said)
    if ended.before.finished and not swept:
        swept = " Nothing of its programs runs any more."
    following = [item for item in found.next if item.tool != "cancel_job"]
    return replace(found, summary=found.summary + swept, next=following)


def _found(result: dict[str, Any]) -> dict[str, Any]:
    """The tool's own result: what every result has stands in ours, the rest below ``result``."""
    truncated = result.get("truncated")
    return {
        "summary": result["summary"],
        "evidence": [Evidence(**item) for item in result.get("evidence", [])],
        "next": [Next(**item) for item in result.get("next", [])],
        "truncated": Truncated(**truncated) if truncated else None,
        "result": {name: value for name, value in result.items() if name not in _OURS},
    }


def _summary(now: Standing, *, new: bool) -> str:
    steps = "" if now.done is None else f", step {now.done}" + (f" of {now.planned}" if now.planned is not None else "")
    silence = f", without a sign of life for {now.silent_s:.0f} s: it may be stopped" if now.silent_s else ""
    if now.ending and now.state in ("queued", "running"):
        return f"{now.job} is being ended."
    if now.state == "queued":
        return f"{now.job} {'was started' if new else 'is queued'}{f'; it waits for {now.waits}' if now.waits else ''}."
    if now.state == "running":
        return (
            f"{now.job} {'was started' if new else 'is running'}: {now.phase or 'starting'}{steps}; {now.elapsed_s:.0f} s so far{silence}."
        )
    if now.state == "failed":
        return f"{now.job} failed ({now.error['slug']}): {now.reason}"
    if now.state == "cancelled":
        return f"{now.job} was cancelled after {now.elapsed_s:.0f} s."
    return f"{now.job} is lost: its supervisor ended without a result, last seen in the phase {now.phase or 'starting'}{steps}."


def _evidence(now: Standing) -> list[Evidence]:
    """What shows that a job has ended without a result."""
    from opguard_core.evidence.refs import JobRef
    from opguard_harness.workspace.evidence import evidence

    if now.state == "failed":
        return [evidence(JobRef(now.job, "result"), f"failed: {now.error['slug']}")]
    return [evidence(JobRef(now.job, "log"), "its log")] if now.state == "lost" else []


def _following(now: Standing) -> list[Next]:
    wait = Next("get_job", {"job": now.job, "wait_s": MOST_WAIT_S}, "wait for its end")
    log = Next("tail_log", {"job": now.job}, "what it said last")
    if not now.finished:
        return [wait]
    if now.state == "failed":
        return [*(Next(**item) for item in now.ways_out[:2]), log]
    if now.state == "cancelled":
        return [Next("list_runs", {}, "what there is")]
    return [log, Next("cancel_job", {"job": now.job}, "end what is left of its programs")]
