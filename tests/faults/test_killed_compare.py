"""Claim: a supervisor killed while a real training runs under observation leaves a job whose launcher and training are found
and ended, whose partial trace can be read, and which can be run again to its verdict."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from opguard_core.trace.reader import Run
from opguard_harness.access.rules import Access
from opguard_harness.invoke import invoke
from opguard_harness.jobs import ending
from opguard_harness.jobs.folder import JobFolder
from opguard_harness.jobs.standing import processes_of, standing
from tests.support.fake_jobs import ROOT as REPOSITORY
from tests.support.fake_jobs import end_everything, wait_for

pytestmark = [pytest.mark.torch, pytest.mark.full]

PROGRAM = """
import pathlib, time
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    while step == 3 and not pathlib.Path("go").exists():
        time.sleep(0.02)
    loss = model(torch.ones(2, 4)).square().mean(){change}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def sides(tmp_path, monkeypatch):
    for name in ("STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(ending, "GRACE_S", 2.0)
    for name, change in (("reference", ""), ("suspect", " * 2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(PROGRAM.format(change=change))
    yield tmp_path
    end_everything()


def call(name, **given):
    return anyio.run(partial(invoke, name, given, Access()))


def commands(job) -> list[str]:
    return [Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ") for pid, _ in processes_of(job)]


def test_a_compare_whose_supervisor_is_killed_in_the_middle_is_ended_and_run_again(sides):
    given = {"reference": str(sides / "reference"), "suspect": str(sides / "suspect"), "python": sys.executable}
    job = call("compare", **given)["job"]
    wait_for(lambda: (standing(job).done or 0) >= 3, "three steps of the reference")
    running = call("get_job", job=job, wait_s=0.0)
    assert (running["state"], running["phase"], running["steps"]["done"]) == ("running", "reference", 3)
    owner = JobFolder.of(job).supervisor()
    os.kill(owner.pid, signal.SIGKILL)
    wait_for(lambda: not owner.alive(), "the end of the supervisor")

    lost = call("get_job", job=job, wait_s=0.0)
    assert (lost["state"], len(lost["left"])) == ("lost", 1)
    told = commands(job)
    assert any(" run --out " in command for command in told)  # the launcher, which does not carry the mark itself
    assert any(command.endswith("train.py ") for command in told)
    ended = call("cancel_job", job=job)
    assert ended["state"] == "lost"
    assert not processes_of(job)
    assert Run.open(lost["left"][0]).ranks

    for side in ("reference", "suspect"):
        (sides / side / "go").write_text("")
    again = call("compare", **given)["job"]
    assert again == f"{job}-2"
    wait_for(lambda: standing(again).finished, "the second attempt")
    found = call("get_job", job=again, wait_s=0.0)
    assert (found["state"], found["result"]["verdict"]) == ("succeeded", "diverged")
    assert call("first_difference", comparison=again)["verdict"] == "diverged"


def test_a_compare_that_is_cancelled_leaves_nothing(sides):
    given = {"reference": str(sides / "reference"), "suspect": str(sides / "suspect"), "python": sys.executable}
    job = call("compare", **given)["job"]
    wait_for(lambda: (standing(job).done or 0) >= 3, "three steps of the reference")
    marks = processes_of(job)
    assert len(marks) >= 2
    assert call("cancel_job", job=job)["state"] == "cancelled"
    assert not processes_of(job)
    assert not list((sides / "state" / "opguard" / "runs").glob(f"*{job}*"))


def test_a_job_goes_on_when_its_server_and_its_client_are_killed(sides):
    from mcp import Client, StdioServerParameters

    given = {"reference": str(sides / "reference"), "suspect": str(sides / "suspect"), "python": sys.executable}
    words = ["-m", "opguard_harness", "mcp", "--root", str(sides), "--allow-command", sys.executable]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ), cwd=str(REPOSITORY))

    async def start_and_kill() -> str:
        async with Client(server, mode="legacy") as client:
            result = await client.call_tool("compare", given)
            assert not result.is_error, result.structured_content
            job = result.structured_content["job"]
            starter = JobFolder.of(job).spec()["starter"]["pid"]
            assert starter != os.getpid()
            os.kill(starter, signal.SIGKILL)
            return job

    job = anyio.run(start_and_kill)
    wait_for(lambda: (standing(job).done or 0) >= 3, "three steps of the reference")
    assert call("compare", **given)["job"] == job  # another server, the same job
    for side in ("reference", "suspect"):
        (sides / side / "go").write_text("")
    wait_for(lambda: standing(job).finished, "the end")
    assert call("get_job", job=job, wait_s=0.0)["result"]["verdict"] == "diverged"
