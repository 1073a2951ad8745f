"""Job tools without torch, and a supervisor that knows them: ``python -m tests.support.fake_jobs JOBDIR``.

Programs are started the way observed ones are (``run_to_end``, a mark, a result folder), only that nothing observes them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from opguard_core.errors import NothingCaptured
from opguard_core.plan.command import RUN_VARIABLE
from opguard_harness.access.rules import current
from opguard_harness.compare import processes
from opguard_harness.compare.family import alive, end
from opguard_harness.compare.folders import Results
from opguard_harness.compare.processes import Interrupts, Spawn, run_to_end
from opguard_harness.config import state_dir
from opguard_harness.interface.declaration import Kind, Next, Result, Role, Tool, argument
from opguard_harness.jobs import starting
from opguard_harness.jobs.folder import JobFolder, job_ids
from opguard_harness.jobs.standing import processes_of
from opguard_harness.workspace.stored import result_folder

ROOT = Path(__file__).resolve().parents[2]
GRACE = "FAKE_GRACE_S"
DEADLINE_S = 60.0


@dataclass(frozen=True)
class PlainArguments:
    do: str = argument("What to do.")
    folder: str = argument("A side.", "", role=Role.SIDE)
    words: list[str] = argument("Words.", [], role=Role.WORDS)
    env: list[str] = argument("Variables.", [], role=Role.VARIABLES)
    case: str = argument("Case.", "")
    token: str = argument("Token.", "")


@dataclass(frozen=True, kw_only=True)
class PlainResult(Result):
    told: str = ""


class Late(NothingCaptured):
    """An error in whose telling somebody sends another signal."""

    def __str__(self) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return super().__str__()


def plain_work(arguments: PlainArguments, progress) -> PlainResult:
    """Things that need no program."""
    do, _, what = arguments.do.partition(":")
    if do == "raise":
        raise {
            "ours": NothingCaptured("nothing at all", hint="Do it again.", next=(Next("doctor", {}, "what is missing"),)),
            "theirs": ZeroDivisionError("/secret/place"),
            "late": Late("too late"),
        }[what]
    if do == "exit":
        os._exit(int(what))
    if do == "leave":
        raise SystemExit(int(what))
    if do == "print":
        print(what)
        progress.say(what)
    if do == "fill":
        return PlainResult(summary="much", told="x" * int(what))
    if do == "settings":
        Path(arguments.folder, "metrics.json").write_text(str(time.monotonic_ns()))
    if do == "wait":  # until a file is there
        progress.steps("run", 3, 9)
        wait_for(Path(what).exists)
    if do == "stdin":
        return PlainResult(summary="read", told=repr(sys.stdin.read()))
    if do == "access":
        return PlainResult(summary="rules", told=repr(current()))
    if do == "whole":  # as a run that died before its supervisor could say so
        folder = result_folder(progress.job, "run")
        trace = folder / "trace" / "rank-00000"
        trace.mkdir(parents=True)
        (trace / "manifest.json").write_text("{}")
        os._exit(9)
    return PlainResult(summary="done", told=json.dumps([arguments.words, arguments.env]))


@dataclass(frozen=True)
class TrainArguments:
    folder: str = argument("Folder of the program.", role=Role.SIDE)
    command: list[str] = argument("Command line.", role=Role.COMMAND)
    case: str = argument("Case.", "")
    token: str = argument("Token.", "")


def train_work(arguments: TrainArguments, progress) -> PlainResult:
    """One program in its folder."""
    final = result_folder(progress.job, "run")
    with Results(final) as results, Interrupts() as interrupts:
        kept = results.keep()
        trace = results.partial / "trace"
        (trace / "rank-00000").mkdir(parents=True)
        (trace / "rank-00000" / "manifest.json").write_text("{}")
        spawn = Spawn(
            command=[sys.executable if word == "python" else word for word in arguments.command],
            cwd=Path(arguments.folder),
            env={**os.environ, RUN_VARIABLE: str(trace)},
            stdout=results.partial / "stdout.txt",
            stderr=results.partial / "stderr.txt",
            mark=f"{RUN_VARIABLE}={trace}",
            timeout_s=None,
            label="run side",
            kept=str(kept),
        )
        progress.steps("run", 0, None)
        code = anyio.run(partial(run_to_end, spawn, interrupts, lambda elapsed: progress.steps("run", 1, None)))
        results.finish()
    return PlainResult(summary=f"ended with {code}", told=str(code))


def _tool(name, arguments, work, **changes) -> Tool:
    about = {"read_only": False, "destructive": True, "open_world": True, "kind": Kind.JOB}
    return Tool(name=name, group="runs", text="A job.", arguments=arguments, result=PlainResult, run=work, **{**about, **changes})


PLAIN = _tool("plain_work", PlainArguments, plain_work)
TRAIN = _tool("train_work", TrainArguments, train_work)


def find(name: str) -> Tool:
    return {tool.name: tool for tool in (PLAIN, TRAIN)}[name]


def command(folder: Path) -> list[str]:
    return [sys.executable, "-c", f"import sys; sys.path[0] = {str(ROOT)!r}; from tests.support.fake_jobs import main; main()", str(folder)]


@contextmanager
def fake_supervisors(patch, state: Path, grace_s: float = 1.0):
    """Jobs of these tools, in a state folder of their own; at the end nothing of them runs any more."""
    patch.setenv("XDG_STATE_HOME", str(state))
    patch.setenv("CUDA_VISIBLE_DEVICES", "")
    patch.setenv(GRACE, str(grace_s))
    patch.setattr(starting, "supervisor_command", command)
    try:
        yield state_dir() / "jobs"
    finally:
        end_everything()


def end_everything() -> None:
    """Kill what is left of all jobs."""
    for job in job_ids():
        folder = JobFolder.of(job)
        owner = folder.supervisor()
        if owner is not None:
            owner.kill()
            wait_for(lambda owner=owner: not owner.alive())
        members = processes_of(job)
        end(members)
        wait_for(lambda members=members: not alive(members))


def wait_for(condition, what: str = "it"):
    """Wait until something can be seen; how long it takes does not matter, that it happens does."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen")
        time.sleep(0.02)
    return found


def main() -> None:
    """The supervisor."""
    from opguard_harness import supervise
    from tests.support.dying import arm

    arm()
    processes.GRACE_S = float(os.environ[GRACE])
    sys.exit(supervise.main(sys.argv[1:], find=find))
