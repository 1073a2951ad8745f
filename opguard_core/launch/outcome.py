"""After the program has ended: what was captured, what was left alone and why, and if nothing was, the reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opguard_core.errors import CaptureError, NothingCaptured, OpGuardError, TransplantFailed
from opguard_core.launch.child import Exit, alive
from opguard_core.launch.folder import PARENT_FOLDER, Process
from opguard_core.trace.boundary import BoundaryKey

REASONS = {
    "agent": "starts ranks, is none itself",
    "resource-tracker": "multiprocessing's resource tracker",
    "fork-server": "multiprocessing's fork server",
    "multiprocessing-child": "started by multiprocessing and joined no process group",
    "dataloader-worker": "a DataLoader worker",
    "compile-worker": "torch.compile's compile worker",
    "worker-pool": "a worker of a process pool",
    "subprocess": "started by a rank or by the captured program as a separate Python program",
    "forked-child": "forked by a rank or by the captured program",
    "second-program": "another program of this run was the single process already",
    "rank-captured-before": "another process of this run was this rank already",
    "uncaptured-rank": "joined a process group as a rank after a fork, where capture cannot start",
    "no-process-group-support": "this torch shows no process groups",
    "parent-of-ranks": f"started the ranks; its own trace is in {PARENT_FOLDER}",
    "no-torch": "never imported torch",
}


def left_alone(processes: Sequence[Process], spawned: bool) -> list[dict[str, Any]]:
    """The run manifest's list of processes that were recognised and not captured.

    Args:
        processes: What they said.
        spawned: Whether the captured program turned out to be the parent of the ranks.
    """
    rows = []
    for process in processes:
        reason = str(process.get("reason"))
        if process.get("folder") and not (spawned and process.get("role") == "program"):
            continue
        if process.get("folder"):
            reason = "parent-of-ranks"
        elif process.get("state") == "failed":
            reason = str(process.get("slug"))
        elif process.get("role") in ("program", "rank"):
            reason = "no-torch"
        rows.append({"pid": process.pid, "argv0": str(process.get("argv0")), "reason": reason, "text": REASONS.get(reason, "")})
    return rows


def gaps(processes: Sequence[Process], ranks: Sequence[int], spawned: bool) -> list[dict[str, str]]:
    """What of the program's training was not captured although it may matter, each with what to do."""
    found = []
    worlds = {int(process.get("world_size")) for process in processes if process.get("folder") and _counts(process, spawned)}
    for world in sorted(worlds):
        missing = sorted(set(range(world)) - set(ranks))
        if missing:
            found.append(
                ("ranks-missing", f"Ranks {_some(missing)} of {world} were not captured.", "Look at left_alone in the manifest for why.")
            )
    for process in processes:
        pid, name = process.pid, process.get("argv0")
        if process.get("reason") == "uncaptured-rank":
            text = f"Process {pid} ({name}) joined a process group as rank {process.get('rank')} after a fork and was not captured."
            found.append(("uncaptured-rank", text, "Start ranks with torchrun, or with the multiprocessing start method spawn."))
        if process.get("reason") == "rank-captured-before":
            text = f"Process {pid} ({name}) said it was rank {process.get('rank')}, which process {process.get('other_pid')} was already."
            found.append(("rank-restarted", text, "A restarted rank is not captured again; run without restarts."))
        if process.get("reason") == "second-program":
            text = f"Process {pid} ({name}) imported torch after another program of this run had been captured."
            found.append(("second-program", text, "Start the training program itself, not a script that runs several."))
        if process.get("joined_world_size") and not spawned:
            text = (
                f"Process {pid} ({name}) was captured as the single process and joined a group of {process.get('joined_world_size')} ranks."
            )
            found.append(("late-rank", text, "Set RANK and WORLD_SIZE for every rank, as torchrun does."))
        if process.get("folder") and process.get("state") == "capturing" and alive(pid):
            found.append(("still-running", f"Process {pid} ({name}) outlived the program.", "Have the program wait for its ranks."))
        if process.get("problem"):
            found.append(("stop-failed", f"Process {pid} could not close its trace: {process.get('problem')}.", OpGuardError.hint))
    return [{"slug": slug, "text": text, "fix": fix} for slug, text, fix in found]


def failure(processes: Sequence[Process]) -> OpGuardError | None:
    """The error of the first process in which capture could not start, or could not do what the run is for."""
    for process in processes:
        if process.get("state") == "failed":
            where = f" (process {process.pid}, {process.get('argv0')})"
            what = "The run was ended" if process.get("folder") else "Capture did not start"
            text = f"{what}{where}: {process.get('text')}"
            trace = str(process.get("traceback"))
            return CaptureError(f"{text}\n{trace}" if trace else text, slug=str(process.get("slug")), hint=str(process.get("fix")))
    return None


def require_transplanted(keys: Sequence[BoundaryKey], processes: Sequence[Process]) -> None:
    """Refuse to call a run a transplanted one in which not all was put in place.

    Raises:
        TransplantFailed: A boundary did not occur.
    """
    # A parent that spawned the ranks was rank 0 itself until then; one of them has met the boundary.
    ends: dict[Any, list[Any]] = {}
    for process in processes:
        if process.get("folder"):
            ends.setdefault(process.get("rank"), []).append(process.get("not_transplanted"))
    lost = [key for number, key in enumerate(keys) if all(end is None or number in end for end in ends.get(key.rank, ()))]
    if not lost:
        return
    raise TransplantFailed(
        f"{len(lost)} of {len(keys)} transplants found no place: {lost[0].shown()} did not occur in this run.",
        hint="A boundary that one side lacks (origin `structure`) has no place to put its bytes; follow that difference in the source.",
    )


def nothing_captured(processes: Sequence[Process], argv: Sequence[str], ended: Exit) -> NothingCaptured:
    """Say why no capture started."""
    how = f"exit code {ended.code}" if ended.code is not None else f"signal {ended.signal}"
    candidates = [process for process in processes if process.get("role") in ("program", "rank")]
    others = [process for process in processes if process.get("role") not in ("program", "rank", "agent")]
    if not processes:
        return NothingCaptured(
            f"No Python process of {Path(argv[0]).name!r} ran our bootstrap (the program ended with {how}).",
            hint="Start a Python program; not with -I, -E or -S, not with a PYTHONPATH of its own or behind another sitecustomize.",
        )
    if not candidates:
        return NothingCaptured(
            f"{processes[0].get('argv0')!r} started no rank (it ended with {how}).",
            hint="Look at its output; its ranks may use another Python.",
        )
    first = candidates[0]
    text = (
        f"The program {first.get('argv0')!r} (process {first.pid}, Python {first.get('python')}) never imported torch; it ended with {how}."
    )
    if others:
        text += f" It started {len(others)} other Python processes, which were left alone (the first: {others[0].get('argv0')!r})."
        return NothingCaptured(text, hint="Start the training itself, or give its processes RANK and WORLD_SIZE.")
    return NothingCaptured(text, hint="Check that it is the training program and that it gets as far as importing torch.")


def _counts(process: Process, spawned: bool) -> bool:
    """Whether this process's idea of the world is the run's."""
    return not (spawned and process.get("role") == "program")


def _some(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
