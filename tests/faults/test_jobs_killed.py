"""Claim: whoever is killed, and whenever, no work is lost, none is done twice, and nothing is left that nobody can end.

Programs are ordinary Python ones that say in a file that they have begun; nothing observes them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import anyio
import pytest

from opguard_harness.access.rules import Access
from opguard_harness.compare.family import alive
from opguard_harness.invoke import unreported
from opguard_harness.jobs import ending
from opguard_harness.jobs.folder import JobFolder, job_ids
from opguard_harness.jobs.standing import processes_of, standing
from opguard_harness.jobs.starting import find_or_start
from opguard_harness.tools.jobs import CancelJobArguments, cancel_job
from tests.faults.test_full_disk import small_disk
from tests.support.dying import STARTING, VARIABLE, WORKING, client
from tests.support.fake_jobs import TRAIN, TrainArguments, fake_supervisors, wait_for

pytestmark = pytest.mark.full

# Says that it has begun, and ends when it may. Its worker lives in a session of its own, as torchrun's do; one that is left
# behind outlives its program.
PROGRAM = """
import os, pathlib, signal, subprocess, sys, time
here = pathlib.Path(__file__).parent
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "worker" not in sys.argv:
    worker = subprocess.Popen([sys.executable, __file__, "worker", *sys.argv[1:]], start_new_session=True)
    with (here / "begun").open("a") as file:
        file.write(f"{os.getpid()} {worker.pid}\\n")
    lock = os.open(here / "alone", os.O_CREAT | os.O_EXCL)
while ("stay" in sys.argv or {"leave", "worker"} <= set(sys.argv)) and not (here / "go").exists():
    time.sleep(0.02)
if "worker" not in sys.argv:
    if "leave" not in sys.argv:
        worker.wait()
    (here / "alone").unlink()
"""


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setattr(ending, "GRACE_S", 1.0)
    with fake_supervisors(monkeypatch, tmp_path / "state") as jobs:
        yield jobs.parent.parent


@pytest.fixture
def program(tmp_path):
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    return folder


def arguments(program, *words, **changes):
    return {"folder": str(program), "command": ["python", "train.py", *words], **changes}


def begin(program, *words, **changes):
    return find_or_start(TRAIN, TrainArguments(**arguments(program, *words, **changes)), Access()).job


def cancel(job):
    return anyio.run(partial(cancel_job, CancelJobArguments(job), unreported))


def finished(job):
    wait_for(lambda: standing(job).finished, f"the end of {job}")
    return standing(job)


def begun(program) -> list[int]:
    """Processes of all programs that have begun."""
    file = program / "begun"
    return [int(word) for word in file.read_text().split()] if file.exists() else []


def running(pids) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text()]


def kill_supervisor(job):
    owner = JobFolder.of(job).supervisor()
    os.kill(owner.pid, signal.SIGKILL)
    wait_for(lambda: not owner.alive(), "the end of the supervisor")


def start_again(program, state) -> str:
    again = client("train_work", arguments(program), state)
    assert again.returncode == 0, again.stderr
    return again.stdout.strip()


@pytest.mark.parametrize("point", STARTING)
def test_a_client_killed_while_it_starts_a_job_starts_it_once_or_not_at_all(state, program, point):
    died = client("train_work", arguments(program), state, die_at=point)
    assert died.returncode == -signal.SIGKILL, died.stderr
    found = finished(start_again(program, state))
    if found.error.get("slug") == "job-not-started":  # its supervisor had not yet seen that nobody would tell it what to do
        found = finished(start_again(program, state))
    assert found.state == "succeeded"
    for job in job_ids():
        assert finished(job).state in ("succeeded", "failed", "lost")
    assert len(begun(program)) == 2  # one program and its worker


def test_a_client_killed_later_does_not_matter_to_its_job(state, program):
    died = client("train_work", arguments(program, "stay"), state, die_at="when the order is given")
    assert died.returncode == -signal.SIGKILL
    (job,) = job_ids()
    wait_for(lambda: len(begun(program)) == 2, "the program")
    assert standing(job).state == "running"
    (program / "go").write_text("")
    assert finished(job).state == "succeeded"


@pytest.mark.parametrize("point", WORKING)
def test_a_supervisor_killed_at_any_point_leaves_a_job_that_says_so_and_can_be_run_again(state, program, monkeypatch, point):
    monkeypatch.setenv(VARIABLE, point)
    job = begin(program)
    monkeypatch.delenv(VARIABLE)
    whole = point in list(WORKING)[list(WORKING).index("when the results have their name") :]
    assert finished(job).state == ("succeeded" if whole else "lost")
    cancel(job)
    assert not processes_of(job)
    again = begin(program)
    assert (again == job) == whole
    assert finished(again).state == "succeeded"
    assert finished(job).state == ("succeeded" if whole else "lost")


@pytest.mark.parametrize("words", [("stay",), ("stay", "deaf")], ids=["obedient", "ignores SIGTERM"])
def test_what_a_killed_supervisor_leaves_is_found_named_and_ended(state, program, words):
    job = begin(program, *words)
    wait_for(lambda: len(begun(program)) == 2 and standing(job).phase == "run", "the program")
    kill_supervisor(job)
    lost = standing(job)
    assert (lost.state, lost.phase) == ("lost", "run")
    assert [path.name for path in lost.left] == ["trace"]
    assert running(begun(program)) == begun(program)  # the training itself goes on
    assert {pid for pid, _ in processes_of(job)} == set(begun(program))
    ended = cancel(job)
    assert ended.state == "lost"
    assert "2 of its processes had outlived it and were ended" in ended.summary
    assert not running(begun(program))
    assert cancel(job).summary.endswith("Nothing of its programs runs any more.")


def test_a_lost_job_holds_its_folder_until_its_program_is_ended(state, program):
    job = begin(program, "stay")
    wait_for(lambda: len(begun(program)) == 2, "the program")
    kill_supervisor(job)
    again = begin(program, "stay")
    assert again == f"{job}-2"
    wait_for(lambda: standing(again).waits, "the wait for the folder")
    assert (standing(again).state, job in standing(again).waits) == ("queued", True)
    cancel(job)
    (program / "alone").unlink()
    wait_for(lambda: len(begun(program)) == 4, "the second program")
    (program / "go").write_text("")
    assert finished(again).state == "succeeded"


@pytest.mark.parametrize("words", [("stay",), ("stay", "deaf")], ids=["obedient", "ignores SIGTERM"])
def test_cancelling_ends_every_process_of_the_program(state, program, words):
    job = begin(program, *words)
    wait_for(lambda: len(begun(program)) == 2, "the program")
    ended = cancel(job)
    assert (ended.state, ended.left) == ("cancelled", [])
    assert not running(begun(program))
    assert not list((state / "opguard" / "runs").glob(f"*{job}*"))


def test_what_a_program_that_ended_by_itself_left_running_is_ended_as_well(state, program):
    job = begin(program, "leave")
    assert finished(job).state == "succeeded"
    assert running(begun(program)) == begun(program)[1:]
    ended = cancel(job)
    assert (ended.state, ended.summary) == ("succeeded", "1 of its processes had outlived it and were ended. ended with 0")
    assert not running(begun(program))
    assert cancel(job).summary == "Nothing to cancel: ended with 0"


def test_cancelling_at_the_same_time_from_everywhere_is_cancelling_once(state, program):
    job = begin(program, "stay", "deaf")
    wait_for(lambda: len(begun(program)) == 2, "the program")
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(cancel, [job] * 4))
    assert {one.state for one in ended} == {"cancelled"}
    assert not running(begun(program))


def test_a_supervisor_that_is_stopped_is_killed_and_its_program_with_it(state, program, monkeypatch):
    monkeypatch.setattr(ending, "_MARGIN_S", 0.0)
    job = begin(program, "stay")
    wait_for(lambda: len(begun(program)) == 2, "the program")
    os.kill(JobFolder.of(job).supervisor().pid, signal.SIGSTOP)
    assert cancel(job).state == "cancelled"
    assert not running(begun(program))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_supervisor_ends_the_program_and_cancels_the_job(state, program, number):
    job = begin(program, "stay")
    wait_for(lambda: len(begun(program)) == 2, "the program")
    os.kill(JobFolder.of(job).supervisor().pid, number)
    assert finished(job).state == "cancelled"
    assert not running(begun(program))


def test_a_job_that_waits_for_a_folder_says_who_has_it_and_runs_when_it_is_free(state, program):
    first, second = begin(program, "stay"), begin(program, "stay", token="again")
    wait_for(lambda: any(standing(job).waits for job in (first, second)), "one to wait")
    runs, waits = sorted((first, second), key=lambda job: standing(job).waits)
    wait_for(lambda: len(begun(program)) == 2, "the other to run")
    assert standing(waits).waits == f"the folder that its program runs in, held by {runs}"
    assert len(begun(program)) == 2
    (program / "go").write_text("")
    # The program refuses to run beside another one: two at once would be a failure of both.
    assert [finished(job).result["told"] for job in (runs, waits)] == ["0", "0"]
    assert len(begun(program)) == 4


def test_two_programs_on_one_gpu_run_one_after_the_other_and_on_two_at_once(state, program, tmp_path, monkeypatch):
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho '0, GPU-aaaa, H200'\necho '1, GPU-bbbb, H200'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    jobs, folders = {}, {}
    for name, device in (("first", "0"), ("second", "GPU-aaaa"), ("third", "1")):
        folders[name] = shutil.copytree(program, tmp_path / name)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", device)
        jobs[name] = begin(folders[name], "stay")
        if name == "first":
            wait_for(lambda: begun(folders["first"]), "the first program")
    wait_for(lambda: begun(folders["third"]), "the program on the other GPU")
    wait_for(lambda: standing(jobs["second"]).waits == f"a GPU, held by {jobs['first']}", "the wait for the GPU")
    assert not begun(folders["second"])
    for folder in folders.values():
        (folder / "go").write_text("")
    assert {finished(job).result["told"] for job in jobs.values()} == {"0"}


def test_a_job_that_waits_for_a_folder_can_be_cancelled(state, program):
    first = begin(program, "stay")
    wait_for(lambda: len(begun(program)) == 2, "the program")
    second = begin(program, "stay", token="again")
    wait_for(lambda: standing(second).waits, "the wait")
    assert cancel(second).state == "cancelled"
    assert standing(first).state == "running"
    assert running(begun(program)) == begun(program)


def test_two_servers_that_start_the_same_job_at_once_start_one(state, program):
    with ThreadPoolExecutor(6) as pool:
        told = list(pool.map(lambda _: client("train_work", arguments(program), state), range(6)))
    assert {one.returncode for one in told} == {0}, told
    (job,) = {one.stdout.strip() for one in told}
    assert finished(job).state == "succeeded"
    assert job_ids() == [job]
    assert len(begun(program)) == 2


def test_a_disk_that_fills_up_while_the_program_runs_does_not_lose_the_result(tmp_path, program, monkeypatch):
    with small_disk(tmp_path / "disk", "400m") as disk, fake_supervisors(monkeypatch, disk / "state"):
        job = begin(program, "stay")
        wait_for(lambda: len(begun(program)) == 2, "the program")
        filled = subprocess.run(["dd", "if=/dev/zero", f"of={disk / 'filler'}", "bs=1M"], capture_output=True, text=True, check=False)
        assert "No space left" in filled.stderr
        (program / "go").write_text("")
        assert finished(job).state == "succeeded"
        assert standing(job).result["summary"] == "ended with 0"


def test_a_program_that_has_the_mark_only_on_its_command_line_is_ended_as_well(state, program):
    # The launcher of an observed run is one: it sets the variable for the program and has it only as its --out.
    job = begin(program, "stay")
    wait_for(lambda: len(begun(program)) == 2, "the program")
    trace = JobFolder.of(job).marks()[0].partition("=")[2]
    code = "import signal; print('up', flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code, "run", "--out", trace], stdout=subprocess.PIPE) as launcher:
        launcher.stdout.readline()
        with subprocess.Popen([sys.executable, "-c", code, "run", "--out", f"{trace}2"], stdout=subprocess.PIPE) as other:
            other.stdout.readline()
            kill_supervisor(job)
            cancel(job)
            assert launcher.wait() == -signal.SIGTERM
            assert other.poll() is None
            other.kill()
    assert not alive(processes_of(job))
