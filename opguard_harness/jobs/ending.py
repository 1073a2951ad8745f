"""End a job: ask its supervisor, which ends its programs; make it end if it does not; end what a dead one has left."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread

from opguard_harness.compare.family import Member, alive, end
from opguard_harness.config import GRACE_S
from opguard_harness.interface.declaration import Report
from opguard_harness.jobs.folder import JobFolder
from opguard_harness.jobs.standing import Standing, processes_of, standing

_LOOK_S = 0.2
_REPORT_S = 1.0
_MARGIN_S = 5.0  # what a supervisor needs beyond its programs' own time to end
_KILLED_S = 10.0


@dataclass(frozen=True)
class Ended:
    """What came of it.

    Attributes:
        before: How the job stood.
        after: How it stands.
        processes: Processes that had outlived the job and were ended.
        remain: Processes that could not be ended.
    """

    before: Standing
    after: Standing
    processes: int
    remain: int


async def end_job(job: str, report: Report) -> Ended:
    """End a job and everything its programs have started; asking again is safe.

    Args:
        job: Its id.
        report: Told progress, each second.

    Raises:
        JobNotFound: There is no such job.
    """
    before = await _look(job)
    folder = JobFolder.of(job)
    ticker = _Ticker(report)
    now = before
    if not now.finished:
        await anyio.to_thread.run_sync(folder.ask_to_end)
        now = await _until_finished(job, GRACE_S + _MARGIN_S, ticker)
        owner = folder.supervisor()
        if not now.finished and owner is not None and owner.here:
            await anyio.to_thread.run_sync(owner.kill)
            now = await _until_finished(job, _KILLED_S, ticker)
    members: set[Member] = set()
    if now.finished:  # a program that ended by itself may have left others as well
        members = await _end_left(job, ticker)
    return Ended(before, await _look(job), len(members), len(alive(members)))


async def _until_finished(job: str, seconds: float, ticker: _Ticker) -> Standing:
    """Wait for a job to end, at most so long."""
    deadline = time.monotonic() + seconds
    while not (now := await _look(job)).finished and time.monotonic() < deadline:
        await ticker.tick("waiting for its programs to end")
        await anyio.sleep(_LOOK_S)
    return now


async def _end_left(job: str, ticker: _Ticker) -> set[Member]:
    """SIGTERM, then SIGKILL after the grace period, to everything that carries a mark of the job."""
    found = await _members(job)
    members = set(found)
    if not members:
        return members
    end(members, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while (found := await _members(job)) and time.monotonic() < deadline:
        members |= found
        await ticker.tick("ending what is left of its programs")
        await anyio.sleep(_LOOK_S)
    deadline = time.monotonic() + _KILLED_S
    while found and time.monotonic() < deadline:  # what was just being started is found the next time
        end(found, signal.SIGKILL)
        members |= found
        await ticker.tick("killing what is left of its programs")
        await anyio.sleep(_LOOK_S)
        found = await _members(job)
    return members


async def _look(job: str) -> Standing:
    return await anyio.to_thread.run_sync(partial(standing, job), abandon_on_cancel=True)


async def _members(job: str) -> set[Member]:
    return await anyio.to_thread.run_sync(partial(processes_of, job), abandon_on_cancel=True)


class _Ticker:
    """Reports once a second."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._began = self._told = time.monotonic()

    async def tick(self, what: str) -> None:
        now = time.monotonic()
        if now - self._told >= _REPORT_S:
            self._told = now
            await self._report(now - self._began, None, what)
