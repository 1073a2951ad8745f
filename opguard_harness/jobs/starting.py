"""Find the job that a call means, or start it.

Everything from looking to naming the supervisor happens under one lock, so that two servers on one state folder agree. Whoever
is killed in between leaves a job that nobody will carry out: the supervisor acts only on a whole order, and it gets that
after it was named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import opguard_harness
from opguard_core.errors import LaunchFailed
from opguard_core.trace.files import FILE_MODE, write_all
from opguard_harness.access.rules import Access
from opguard_harness.config import now, private_dir, runs_dir, state_dir
from opguard_harness.errors import JobDamaged
from opguard_harness.interface.declaration import Tool
from opguard_harness.jobs.folder import FORMAT, JobFolder, job_ids, jobs_dir
from opguard_harness.jobs.handover import pack
from opguard_harness.jobs.naming import base_id, request_of, settled, short_name, sources_of
from opguard_harness.jobs.owner import Owner
from opguard_harness.jobs.redaction import redacted
from opguard_harness.jobs.standing import UNFINISHED, Standing, standing
from opguard_harness.workspace.documents import locked, write_document

# Nothing of the working folder may stand in for a module: its entry of the path goes before anything is imported.
_BOOT = """import sys
sys.path[:1] = filter(None, sys.path[:1])
sys.path.append(sys.argv.pop(1))
from opguard_harness.supervise import main
sys.exit(main(sys.argv[1:]))"""


@dataclass(frozen=True)
class Started:
    """The job that a call means.

    Attributes:
        job: Its id.
        new: This call started it.
        changed: It was there and is not finished, but the sources have changed since it was asked for.
    """

    job: str
    new: bool
    changed: bool = False


def supervisor_command(folder: Path) -> list[str]:
    """The command line that carries out the job of a folder."""
    return [sys.executable, "-c", _BOOT, str(Path(opguard_harness.__file__).resolve().parent.parent), str(folder)]


def find_or_start(tool: Tool, arguments: Any, access: Access) -> Started:
    """The job of these inputs: the one there is, or a new one.

    Args:
        tool: A tool of kind ``JOB``.
        arguments: Its arguments, checked and admitted.
        access: Rules that its work is to be done under.

    Raises:
        CommitNotFound: A commit is asked for that is not there.
        LaunchFailed: The supervisor could not be started.
        SystemRefused: The state folder cannot be used.
    """
    arguments = settled(tool, arguments)
    request, sources = request_of(tool, arguments), sources_of(tool, arguments)
    order = pack(tool, arguments, access)
    private_dir(state_dir())
    base = private_dir(jobs_dir())
    with locked(base / "jobs"):
        mates = _mates(tool, request)
        for mate in mates:
            if mate.state in UNFINISHED:
                return Started(mate.job, new=False, changed=mate.code != sources.code)
        for mate in mates:
            if mate.state == "succeeded" and mate.code == sources.code and sources.settings in mate.settings:
                return Started(mate.job, new=False)
        for draft in base.glob(".new-*"):  # of somebody who was killed: whoever makes one holds this lock
            shutil.rmtree(draft, ignore_errors=True)
        job = _free_id(base_id(tool, request, sources))
        spec = {
            "format": FORMAT,
            "job": job,
            "tool": tool.name,
            "request": request,
            "code": sources.code,
            "settings": sources.settings,
            "case": str(getattr(arguments, "case", "")),
            "created": now(),
            "starter": Owner.ours().as_dict(),
            "arguments": redacted(tool, arguments),
        }
        process = _spawn(_make(base, job, spec))
    _hand_over(process, order)
    return Started(job, new=True)


def _mates(tool: Tool, request: str) -> list[Standing]:
    """Jobs of the same request, newest first."""
    found = []
    for job in job_ids():
        if not job.startswith(f"{short_name(tool.name)}-"):
            continue
        try:
            if JobFolder(jobs_dir() / job).spec()["request"] == request:
                found.append(standing(job))
        except JobDamaged:
            continue  # nobody knows what it was, so it is not this
    return sorted(found, key=lambda mate: mate.created, reverse=True)


def _free_id(base: str) -> str:
    """The first attempt's id, or the next one's; an id is used up when anything of its name is there."""

    def used(job: str) -> bool:
        return (jobs_dir() / job).exists() or (runs_dir() / job).exists()

    return next(job for job in (base, *(f"{base}-{number}" for number in range(2, 1_000_000))) if not used(job))


def _make(base: Path, job: str, spec: dict[str, Any]) -> JobFolder:
    """The folder of a new job; it has its name only when it has its request."""
    draft = Path(tempfile.mkdtemp(prefix=".new-", dir=base))
    try:
        write_document(draft / "spec.json", spec)
        JobFolder(draft).beat()
        os.close(os.open(draft / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
        return JobFolder(draft.rename(base / job))
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _spawn(folder: JobFolder) -> subprocess.Popen[bytes]:
    """Start the supervisor, which waits for its order, and say who it is."""
    words = supervisor_command(folder.path)
    process = None
    try:
        with folder.log.open("ab") as log:
            process = subprocess.Popen(words, bufsize=0, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
        owner = Owner.of(process.pid)
        if owner is None:
            raise LaunchFailed(f"The supervisor of {folder.id} ended at once.", hint="Run `doctor`; the installation may be damaged.")
        folder.write_supervisor(owner)
    except (OSError, LaunchFailed) as error:
        if process is not None:
            process.kill()
            process.communicate()
        shutil.rmtree(folder.path, ignore_errors=True)  # it was never told what to do
        if isinstance(error, LaunchFailed):
            raise
        raise LaunchFailed(
            f"The supervisor of {folder.id} cannot be started: {error.strerror}.", hint="Check the free space and memory."
        ) from error
    return process


def _hand_over(process: subprocess.Popen[bytes], order: bytes) -> None:
    """Tell the supervisor what to do; from here on it does not need us."""
    assert process.stdin is not None, "it was started with a pipe"
    with suppress(BrokenPipeError):  # then it has gone, and its folder says how it stands
        write_all(process.stdin.fileno(), order)
    process.stdin.close()
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
