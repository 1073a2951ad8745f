"""Leases: one program at a time on a GPU and in a folder, among all jobs of one state folder.

A job takes all that a program needs or nothing, right before the program starts, and holds nothing while it waits; so no two
jobs can wait for each other. A lease is a file that names its holder. It is free again when the holder gives it back, or has
ended and nothing of its programs runs any more: a supervisor that was killed still holds what its training uses.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opguard_core.errors import Interrupted
from opguard_harness.config import private_dir, state_dir
from opguard_harness.errors import JobDamaged, JobNotFound, SystemRefused
from opguard_harness.jobs.devices import gpus_of
from opguard_harness.jobs.folder import JobFolder
from opguard_harness.jobs.standing import processes_of, standing
from opguard_harness.workspace.documents import locked, read_document, write_document

if TYPE_CHECKING:
    from opguard_harness.compare.processes import Interrupts, Spawn
    from opguard_harness.jobs.reporting import Pulse

_MAX_BYTES = 64 * 1024
_LOOK_S = 0.5


@dataclass(frozen=True)
class Resource:
    """What one program at a time may use. ``kind``: "GPU" or "folder"."""

    kind: str
    name: str

    @property
    def file(self) -> str:
        """Name of its lease."""
        return f"{self.kind.lower()}-{hashlib.sha256(os.fsencode(self.name)).hexdigest()[:24]}.json"


@dataclass(frozen=True)
class Held:
    """What somebody else holds."""

    resource: Resource
    job: str

    @property
    def text(self) -> str:
        """In our own words."""
        what = "a GPU" if self.resource.kind == "GPU" else "the folder that its program runs in"
        return f"{what}, held by {self.job}"


def resources_of(folder: Path, env: Mapping[str, str]) -> tuple[Resource, ...]:
    """What a program needs that runs in that folder with that environment."""
    gpus = [Resource("GPU", name) for name in gpus_of(env)]
    return Resource("folder", os.path.realpath(folder)), *gpus


def take(job: str, wanted: Sequence[Resource]) -> Held | None:
    """Take all of them for a job, or none.

    Returns:
        None when all are taken; else one that is held.
    """
    base = private_dir(state_dir() / "leases")
    with locked(base / "leases"):
        for resource in wanted:
            holder = _holder(base / resource.file)
            if holder and holder != job and _holds(holder):
                return Held(resource, holder)
        for resource in wanted:
            write_document(base / resource.file, {"job": job, "kind": resource.kind, "name": resource.name})
    return None


def give_back(job: str, taken: Sequence[Resource]) -> None:
    """Give back what a job holds of these."""
    base = state_dir() / "leases"
    with locked(base / "leases"):
        for resource in taken:
            if _holder(base / resource.file) == job:
                (base / resource.file).unlink()


def _holder(path: Path) -> str:
    """Who holds a lease; empty for nobody, and for a file that nobody can read."""
    try:
        found = read_document(path, _MAX_BYTES, JobDamaged)
    except JobDamaged:
        return ""
    job = (found or {}).get("job")
    return job if isinstance(job, str) else ""


def _holds(job: str) -> bool:
    """Whether a job still uses what it took."""
    try:
        return not standing(job).finished or bool(processes_of(job))
    except (JobNotFound, JobDamaged):
        return False


class Gatekeeper:
    """The gate of one job: each of its programs takes its leases and leaves its mark before it starts."""

    def __init__(self, folder: JobFolder, pulse: Pulse) -> None:
        """For the job of a folder."""
        self._folder = folder
        self._pulse = pulse

    @asynccontextmanager
    async def admit(self, spawn: Spawn, interrupts: Interrupts) -> AsyncIterator[None]:
        """Wait for the leases, note the mark; give the leases back when the program has ended.

        Raises:
            Interrupted: The job is to end while it waits.
        """
        import anyio

        job = self._folder.id
        wanted = resources_of(spawn.cwd, spawn.env)
        while (held := take(job, wanted)) is not None:
            self._pulse.tell(waits=held.text)
            if interrupts.count:
                raise Interrupted(f"Interrupted while the {spawn.label} waited for {held.text}.", hint="Make the same call again.")
            await anyio.sleep(_LOOK_S)
        self._pulse.tell(waits="")
        try:
            self._folder.mark(spawn.mark)
            yield
        finally:
            with suppress(OSError, SystemRefused):  # a lease that cannot be removed is free when this job has ended
                give_back(job, wanted)
