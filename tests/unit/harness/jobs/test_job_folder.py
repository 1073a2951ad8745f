"""The files of a job: private, whole or absent, and read with suspicion."""

import json
import stat

import pytest

from opguard_harness.errors import JobDamaged, JobNotFound
from opguard_harness.jobs.folder import JobFolder, is_job, job_ids, jobs_dir
from opguard_harness.jobs.owner import Owner
from tests.support.job_folders import JOB, make

SPEC = {"format": 1, "job": JOB, "tool": "compare", "request": "r", "code": "c", "settings": "s", "created": "t", "case": ""}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return make()


@pytest.mark.parametrize("name", ["compare-0123456789ab", "compare-0123456789ab-2", "launch-x-0123456789ab-17"])
def test_ids_of_jobs(name):
    assert is_job(name)


@pytest.mark.parametrize(
    "name", ["", "..", "compare", "compare-0123456789ab/..", "compare-0123456789ab-0", "compare-0123456789AB", "a\n-0123456789ab"]
)
def test_no_ids_of_jobs(name):
    assert not is_job(name)


def test_an_unknown_job_is_told_the_closest_one(folder):
    with pytest.raises(JobNotFound, match=f"did you mean '{JOB}'"):
        JobFolder.of(JOB[:-1] + "c")
    with pytest.raises(JobNotFound, match="There is no job"):
        JobFolder.of("../../etc")


def test_only_folders_with_an_id_are_jobs(folder):
    (jobs_dir() / ".new-abc").mkdir()
    (jobs_dir() / "run-0123456789ab").write_text("a file")
    assert job_ids() == [JOB]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', json.dumps({**SPEC, "format": 2}), json.dumps({**SPEC, "tool": 3})])
def test_a_damaged_request_is_an_error(folder, text):
    (folder.path / "spec.json").write_text(text)
    with pytest.raises(JobDamaged):
        folder.spec()


def test_everything_written_is_private(folder):
    folder.write_supervisor(Owner.ours())
    folder.write_state({"phase": "run"})
    folder.write_outcome({"state": "cancelled", "ended": "t"})
    folder.beat()
    folder.mark("A=b")
    folder.ask_to_end()
    ours = [path for path in folder.path.iterdir() if path.name != "spec.json"]
    assert len(ours) == 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in ours} == {0o600}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1, "state": "succeeded", "ended": "t"}', '{"format": 1, "state": "failed", "ended": "t"}']
)
def test_a_damaged_result_is_none(folder, text):
    (folder.path / "result.json").write_text(text)
    assert folder.outcome() is None


def test_a_damaged_state_says_nothing(folder):
    (folder.path / "state.json").write_text('{"phase": "half')
    assert folder.state() == {}
    folder.write_state({"phase": "run"})
    assert folder.state()["phase"] == "run"


def test_marks_come_back_and_a_torn_line_is_passed_over(folder):
    assert folder.marks() == []
    folder.mark("OPGUARD_RUN=/a b\n/c")
    folder.mark("OPGUARD_RUN=/d")
    with (folder.path / "marks").open("ab") as stream:
        stream.write(b'"OPGUARD_RUN=/half')
    assert folder.marks() == ["OPGUARD_RUN=/a b\n/c", "OPGUARD_RUN=/d"]


def test_a_sign_of_life_grows_no_file(folder):
    folder.beat()
    size, first = (folder.path / "heartbeat").stat().st_size, folder.last_beat()
    folder.beat()
    assert (folder.path / "heartbeat").stat().st_size == size
    assert folder.last_beat().at_ns > first.at_ns


@pytest.mark.parametrize("text", ["", "x", "x y", "\xff"])
def test_a_damaged_sign_of_life_is_none(folder, text):
    (folder.path / "heartbeat").write_bytes(text.encode("latin-1"))
    assert folder.last_beat() is None


def test_only_the_first_asks_for_the_end(folder):
    assert not folder.asked_to_end()
    assert folder.ask_to_end()
    assert folder.asked_to_end()
    assert not folder.ask_to_end()
