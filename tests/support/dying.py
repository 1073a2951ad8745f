"""Processes that are killed at a named point: ``DIE_AT=<point>`` in the environment, before or after one of our own calls."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from opguard_harness import supervise
from opguard_harness.compare import folders
from opguard_harness.jobs import folder as job_folder
from opguard_harness.jobs import leases, reporting, starting
from tests.support import fake_jobs

VARIABLE = "DIE_AT"
# Where a client that starts a job may die, in the order in which it comes there.
STARTING = {
    "before it looks": (starting, "_mates", "before"),
    "before the folder is made": (starting, "_make", "before"),
    "before the folder has its name": (starting, "write_document", "after"),
    "before the supervisor is started": (starting, "_spawn", "before"),
    "before the supervisor is named": (job_folder.JobFolder, "write_supervisor", "before"),
    "when the supervisor is named": (job_folder.JobFolder, "write_supervisor", "after"),
    "in the middle of the order": (starting, "write_all", "half"),
    "when the order is given": (starting, "_hand_over", "after"),
}
# Where a supervisor may die.
WORKING = {
    "before it has its order": (supervise, "unpack", "before"),
    "before there is room for the result": (job_folder.JobFolder, "reserve", "before"),
    "before it says that it works": (reporting.Pulse, "__enter__", "before"),
    "before it takes its leases": (leases, "take", "before"),
    "before the mark": (job_folder.JobFolder, "mark", "before"),
    "before the program": (job_folder.JobFolder, "mark", "after"),
    "when the program has ended": (leases, "give_back", "before"),
    "before the results have their name": (folders.Results, "finish", "before"),
    "when the results have their name": (folders.Results, "finish", "after"),
    "before the result is written": (job_folder.JobFolder, "write_outcome", "before"),
    "when the result is written": (job_folder.JobFolder, "write_outcome", "after"),
}


def arm() -> None:
    """Die at the point that the environment names."""
    point = os.environ.pop(VARIABLE, "")
    if not point:
        return
    owner, name, when = {**STARTING, **WORKING}[point]
    real = getattr(owner, name)

    def dying(*given, **named):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if when == "half":
            real(given[0], given[1][: len(given[1]) // 2])
        else:
            real(*given, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, dying)


def client(tool: str, arguments: dict, state: Path, die_at: str = "") -> subprocess.CompletedProcess[str]:
    """Start a job from a process of its own; its output is the job's id."""
    words = [sys.executable, "-m", "tests.support.dying", tool, json.dumps(arguments)]
    env = {**os.environ, "XDG_STATE_HOME": str(state), VARIABLE: die_at}
    return subprocess.run(words, cwd=fake_jobs.ROOT, env=env, capture_output=True, text=True, check=False)


def main() -> None:
    """A client: start the job and say its id."""
    from opguard_harness.access.rules import Access

    arm()
    starting.supervisor_command = fake_jobs.command
    tool = fake_jobs.find(sys.argv[1])
    started = starting.find_or_start(tool, tool.arguments(**json.loads(sys.argv[2])), Access())
    print(started.job, flush=True)


if __name__ == "__main__":
    main()
