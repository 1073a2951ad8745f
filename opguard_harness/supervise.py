"""The process that carries out one job: started in a session of its own, told what to do through standard input.

It writes its result as the last thing it does, all at once. Signals end the work as Ctrl-C ends a command: programs get their
time to end, unfinished results are removed, and the job is cancelled.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from opguard_core.errors import Interrupted, OpGuardError
from opguard_harness.access.rules import using
from opguard_harness.answer.failures import of_a_call
from opguard_harness.answer.plain import dumps, plain
from opguard_harness.compare.processes import gated
from opguard_harness.config import ANSWER_LIMIT_CHARS, now
from opguard_harness.errors import Internal
from opguard_harness.interface.declaration import Tool
from opguard_harness.jobs.folder import JobFolder
from opguard_harness.jobs.handover import unpack
from opguard_harness.jobs.leases import Gatekeeper
from opguard_harness.jobs.naming import sources_of
from opguard_harness.jobs.reporting import JobProgress, Pulse

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(words: Sequence[str], find: Callable[[str], Tool] | None = None) -> int:
    """Carry out the job of a folder.

    Args:
        words: The job's folder.
        find: Finds a tool by its name; None looks in the registry.

    Returns:
        0 when the result is written, whatever it is.
    """
    folder = JobFolder(Path(words[0]))
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # one log, in the order in which things were said
    try:
        outcome = _work(folder, find)
    except BaseException as error:  # noqa: BLE001 - the edge of this process: whatever is raised below is the job's outcome
        _ignore_signals()
        outcome = _failure(error)
    folder.release()
    folder.write_outcome({**outcome, "ended": now()})
    return 0


def _work(folder: JobFolder, find: Callable[[str], Tool] | None) -> dict[str, Any]:
    """Read the order and carry it out."""
    order = unpack(sys.stdin.buffer.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if folder.asked_to_end():
        raise Interrupted("Cancelled before anything was run.")
    folder.reserve()
    with Pulse(folder) as pulse, using(order.access), gated(Gatekeeper(folder, pulse).admit):
        if find is None:
            from opguard_harness.registry import find as registered

            find = registered
        tool = find(order.tool)
        arguments = order.arguments_for(tool)
        found = tool.run(arguments, JobProgress(folder.id, pulse))
        _ignore_signals()
        result = plain(found)
    length = len(dumps(result))
    if length > ANSWER_LIMIT_CHARS:
        raise Internal(f"The result of {tool.name} has {length} characters; the limit is {ANSWER_LIMIT_CHARS}.")
    return {"state": "succeeded", "result": result, "settings": sources_of(tool, arguments).settings}


def _failure(error: BaseException) -> dict[str, Any]:
    """How a job ends that an exception ended: what a call that failed so would answer with."""
    known: OpGuardError = of_a_call(error)
    if isinstance(known, Interrupted):
        return {"state": "cancelled"}
    sys.stderr.write(f"{known}\n")
    from opguard_harness.invoke import error_result  # brings every tool with it

    told = error_result(known)
    return {"state": "failed", "summary": told["summary"], "error": told["error"], "next": told["next"]}


def _ignore_signals() -> None:
    """From here on there is nothing left to end."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
