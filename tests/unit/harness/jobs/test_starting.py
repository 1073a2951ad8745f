"""One call, one job: found when it is there, started when it is not, and nothing secret of it on the disk."""

import json
import os
import stat
from dataclasses import replace

import pytest

from opguard_core.errors import LaunchFailed
from opguard_harness.access.rules import Access
from opguard_harness.jobs import starting
from opguard_harness.jobs.folder import JobFolder, job_ids, jobs_dir
from opguard_harness.jobs.standing import standing
from opguard_harness.jobs.starting import find_or_start
from tests.support.fake_jobs import PLAIN, PlainArguments, fake_supervisors, wait_for


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    with fake_supervisors(monkeypatch, tmp_path / "state"):
        yield


def begin(do="done", **changes):
    return find_or_start(PLAIN, replace(PlainArguments(do), **changes), Access())


def finished(job):
    wait_for(lambda: standing(job).finished, f"the end of {job}")
    return standing(job)


def test_a_job_is_started_once_and_then_found(tmp_path):
    first = begin(f"wait:{tmp_path / 'go'}")
    again = begin(f"wait:{tmp_path / 'go'}")
    assert (first.new, again.new) == (True, False)
    assert again.job == first.job
    (tmp_path / "go").write_text("")
    assert finished(first.job).state == "succeeded"
    assert begin(f"wait:{tmp_path / 'go'}") == again
    assert job_ids() == [first.job]


def test_an_unfinished_job_is_found_even_if_its_program_was_edited(tmp_path):
    program = tmp_path / "train.py"
    program.write_text("1")
    first = begin(f"wait:{tmp_path / 'go'}", folder=str(tmp_path))
    program.write_text("2")
    again = begin(f"wait:{tmp_path / 'go'}", folder=str(tmp_path))
    assert (again.job, again.new, again.changed) == (first.job, False, True)
    (tmp_path / "go").write_text("")
    finished(first.job)
    other = begin(f"wait:{tmp_path / 'go'}", folder=str(tmp_path))
    assert other.new
    assert other.job.rpartition("-")[2] != first.job.rpartition("-")[2]
    assert finished(other.job).state == "succeeded"


@pytest.mark.full
def test_settings_that_the_program_wrote_itself_do_not_make_it_another_job(tmp_path):
    program = tmp_path / "program"
    program.mkdir()
    first = begin("settings", folder=str(program))
    finished(first.job)
    assert not begin("settings", folder=str(program)).new
    (program / "metrics.json").write_text("edited")
    second = begin("settings", folder=str(program))
    assert second.new
    finished(second.job)


@pytest.mark.parametrize("do", ["raise:ours", pytest.param("exit:9", marks=pytest.mark.full)])
def test_what_did_not_succeed_is_tried_anew_under_the_next_id(do):
    jobs = []
    for _ in range(3):
        started = begin(do)
        assert started.new
        assert finished(started.job).state in ("failed", "lost")
        jobs.append(started.job)
    assert jobs == [jobs[0], f"{jobs[0]}-2", f"{jobs[0]}-3"]


def test_another_token_runs_anew():
    first, second = begin(), begin(token="again")
    assert second.new
    assert first.job != second.job
    assert {finished(first.job).state, finished(second.job).state} == {"succeeded"}


def test_an_id_whose_results_are_there_already_is_used_up(tmp_path):
    first = begin().job
    finished(first)
    (jobs_dir().parent / "runs" / first).mkdir(parents=True)
    for path in (jobs_dir() / first).iterdir():
        path.unlink()
    (jobs_dir() / first).rmdir()
    second = begin().job
    assert second == f"{first}-2"
    finished(second)


def test_secrets_reach_the_work_and_no_disk(tmp_path):
    words = ["--api-key", "hunter2", "--lr=0.1", "--password=hunter2"]
    job = begin(words=words, env=["TOKEN=hunter2", "PATH_X=hunter2"]).job
    found = finished(job)
    assert json.loads(found.result["told"]) == [words, ["TOKEN=hunter2", "PATH_X=hunter2"]]
    spec = JobFolder.of(job).spec()
    assert spec["arguments"]["env"] == ["TOKEN", "PATH_X"]
    assert spec["arguments"]["words"] == ["--api-key", "***", "--lr=0.1", "--password=***"]
    result = jobs_dir() / job / "result.json"
    holding = [path for path in jobs_dir().rglob("*") if path.is_file() and path != result and b"hunter2" in path.read_bytes()]
    assert not holding


def test_everything_of_a_job_is_private():
    job = begin().job
    finished(job)
    assert stat.S_IMODE((jobs_dir() / job).stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (jobs_dir() / job).iterdir()} == {0o600}


def test_a_supervisor_that_cannot_be_started_leaves_no_job(monkeypatch):
    monkeypatch.setattr(starting, "supervisor_command", lambda folder: ["/nope/python"])
    with pytest.raises(LaunchFailed, match="cannot be started"):
        begin()
    assert job_ids() == []


def test_a_supervisor_that_dies_at_once_leaves_a_lost_job(monkeypatch):
    monkeypatch.setattr(starting, "supervisor_command", lambda folder: ["false"])
    started = begin(env=["A=" + "x" * 500_000])  # more than a pipe holds: the order cannot be handed over
    assert finished(started.job).state == "lost"


def test_the_shipped_supervisor_takes_no_module_from_the_working_folder(tmp_path, monkeypatch):
    for name in ("json", "opguard_harness", "opguard_core", "typing"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from the working folder')")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    job = begin().job
    found = finished(job)  # the shipped registry has no such tool: it came as far as that
    assert (found.state, found.error["slug"]) == ("failed", "unknown-tool")


def test_a_damaged_job_is_in_nobodys_way():
    job = begin().job
    finished(job)
    (jobs_dir() / job / "spec.json").write_text("{")
    second = begin()
    assert second.job == f"{job}-2"
    finished(second.job)


def test_what_a_killed_client_left_half_made_is_swept(tmp_path):
    (jobs_dir() / ".new-abc").mkdir(parents=True)
    finished(begin().job)
    assert not (jobs_dir() / ".new-abc").exists()


def test_a_state_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    from opguard_harness.errors import SystemRefused

    real = os.getuid()
    begin_in = tmp_path / "state" / "opguard"
    begin_in.mkdir(parents=True)
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    with pytest.raises(SystemRefused, match="another user"):
        begin()
    monkeypatch.setattr(os, "getuid", lambda: real)
