"""What a call from the shell costs before it answers: `python -m tests.benchmarks --only calls`.

`call list_runs` is started again and again, beside a Python that does nothing, in turn, so that both meet the same machine. The
state folder holds nothing, or hundreds of comparisons, runs and jobs with answers of an ordinary size. A call is one thread that
hardly waits for anything, so its CPU time is what it takes on an idle machine, and a busy one does not blur it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.report import Criterion, Section, table
from tests.support.answers import answer, pivot, place

REPOSITORY = Path(__file__).resolve().parents[2]
BEYOND_S = 0.4  # what `list_runs` may cost beyond Python's own start
STACK = 40  # frames of each side of a pivot: an answer of some 20 kB


def measure(folder: Path, *, progress: Callable[[str], None], stored: int = 300, rounds: int = 15) -> Section:
    """Time the calls.

    Args:
        folder: Scratch space.
        progress: Told what is being done.
        stored: Comparisons, runs and jobs in the full state folder, a third each.
        rounds: Starts of each command.
    """
    fill(folder / "full", stored)
    bare = [sys.executable, "-c", "pass"]
    call = [sys.executable, "-m", "opguard_harness", "call", "list_runs"]
    commands = {
        "python -c pass": (bare, folder / "empty", None),
        "list_runs, nothing stored": ([*call, "{}"], folder / "empty", "Nothing stored"),
        f"list_runs, {stored} stored": ([*call, "{}"], folder / "full", f"{stored // 3 * 3} entries"),
        f"list_runs, {stored} stored, only failed": ([*call, '{"state": "failed"}'], folder / "full", f"{stored // 3} failed entries"),
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        progress(f"calls: round {number} of {rounds}")
        for name, (words, state, expected) in commands.items():
            spent = _run(words, state, expected)
            if number:  # the first round writes byte code and fills caches
                taken[name].append(spent)
    wall, work = ({name: min(pair[at] for pair in pairs) for name, pairs in taken.items()} for at in (0, 1))
    names = list(commands)
    empty, full, failed = names[1:]
    base = wall[names[0]]
    rows = [[name, wall[name], work[name], wall[name] / base, wall[name] - base] for name in names]
    return Section(
        how=f"The fastest of {rounds} starts in turn; a third of what is stored are comparisons, runs and failed jobs each.",
        tables=[table(["command", "seconds", "CPU seconds", "times Python's own start", "seconds beyond it"], rows)],
        criteria=[
            Criterion(f"`call list_runs` with {stored} stored, beyond Python's own start", work[full] - work[names[0]], BEYOND_S, "s CPU"),
            Criterion(f"`call list_runs`: {stored} stored against none, CPU time", work[full] / work[empty], 1.5, "x"),
            Criterion("`call list_runs`: all asked for their state against one page, CPU time", work[failed] / work[full], 2.0, "x"),
        ],
    )


def _run(words: list[str], state: Path, expected: str | None) -> tuple[float, float]:
    """Seconds and CPU seconds of one command, whose summary begins so."""
    environment = {**os.environ, "XDG_STATE_HOME": str(state), "PYTHONPATH": str(REPOSITORY)}
    before, began = _spent(), time.perf_counter()
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, check=True)
    wall = time.perf_counter() - began
    assert expected is None or json.loads(done.stdout)["summary"].startswith(expected), done.stdout
    return wall, _spent() - before


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def fill(state: Path, stored: int) -> None:
    """A state folder with so many entries."""
    base = state / "opguard"
    stack = [place(file=f"package/module_{number}.py", text="layer(hidden, mask) + residual") for number in range(STACK)]
    found = answer("diverged", pivot=pivot(stack={"reference": stack, "suspect": stack}))
    for number in range(stored // 3):
        stamp = f"20260101-{number // 3600:02d}{number // 60 % 60:02d}{number % 60:02d}"
        folder = base / "runs" / f"{stamp}-compare-{number:06x}"
        folder.mkdir(parents=True)
        (folder / "answer.json").write_text(json.dumps(found))
        rank = base / "runs" / f"{stamp}-run-{number:06x}" / "trace" / "rank-00000"
        rank.mkdir(parents=True)
        (rank / "manifest.json").write_text("{}")
        (rank.parent / "manifest.json").write_text(json.dumps({"mode": "full"}))
        _job(base / "jobs" / f"compare-{number:012x}", number)


def _job(folder: Path, number: int) -> None:
    """A job that failed."""
    folder.mkdir(parents=True)
    created = f"2026-01-02T{number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}.000000Z"
    digests = dict.fromkeys(("request", "code", "settings", "sources"), "0" * 64)
    spec: dict[str, Any] = {"job": folder.name, "tool": "compare", **digests, "created": created, "case": "", "arguments": {}}
    (folder / "spec.json").write_text(json.dumps({"format": 1, **spec}))
    error = {"slug": "launch-failed", "text": "It did not start.", "fix": "Look at it."}
    ended = {"state": "failed", "error": error, "summary": error["text"], "next": [], "ended": created}
    (folder / "result.json").write_text(json.dumps({"format": 1, **ended}))
