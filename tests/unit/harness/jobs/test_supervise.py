"""Whatever becomes of the work is the job's result, in words that a caller can act on."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from opguard_harness.access.rules import Access
from opguard_harness.jobs.folder import JobFolder
from opguard_harness.jobs.handover import pack
from opguard_harness.jobs.standing import standing
from opguard_harness.jobs.starting import find_or_start
from tests.support.fake_jobs import PLAIN, PlainArguments, command, fake_supervisors, wait_for
from tests.support.job_folders import make


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    with fake_supervisors(monkeypatch, tmp_path / "state"):
        yield


def done(do, access=None, **changes):
    job = find_or_start(PLAIN, replace(PlainArguments(do), **changes), access or Access()).job
    wait_for(lambda: standing(job).finished, f"the end of {job}")
    return standing(job)


def log_of(job):
    return JobFolder.of(job).log.read_text()


def test_a_result_is_kept_whole():
    found = done("done")
    assert found.state == "succeeded"
    assert found.result == {"summary": "done", "evidence": [], "next": [], "truncated": None, "told": "[[], []]"}


def test_an_error_of_ours_is_kept_as_it_is():
    found = done("raise:ours")
    assert found.state == "failed"
    assert found.error == {"slug": "nothing-captured", "text": "nothing at all", "fix": "Do it again."}


def test_a_signal_that_comes_while_an_error_is_told_loses_nothing():
    found = done("raise:late")
    assert (found.state, found.error["text"]) == ("failed", "too late")


def test_nothing_of_an_unexpected_exception_but_a_reference_reaches_the_caller():
    found = done("raise:theirs")
    assert (found.state, found.error["slug"]) == ("failed", "internal")
    assert "secret" not in str(found.error)


def test_an_exit_of_the_work_is_no_success():
    assert (done("leave:0").state, done("leave:3").state) == ("failed", "failed")


def test_a_process_that_just_ends_is_lost_whatever_its_exit_code():
    assert (done("exit:0").state, done("exit:1").state) == ("lost", "lost")


def test_a_result_that_no_call_could_give_is_an_error_of_ours():
    assert done("fill:39000").state == "succeeded"
    assert done("fill:40000").error["slug"] == "internal"


def test_whatever_is_printed_goes_to_the_log():
    found = done("print:a word\x1b[2J")
    assert log_of(found.job).splitlines() == ["a word\x1b[2J", "a word\\x1b[2J"]  # what others say is kept, what we say is visible


def test_the_work_has_no_standard_input_and_does_not_see_the_order():
    assert done("stdin", env=["TOKEN=hunter2"]).result["told"] == "''"


def test_the_work_is_done_under_the_rules_of_the_call(tmp_path):
    rules = Access(roots=(tmp_path,), commands=("python",), groups=("runs",))
    assert done("access", rules).result["told"] == repr(rules)


def test_a_whole_result_folder_is_served_though_its_supervisor_died():
    found = done("whole")
    assert found.state == "succeeded"
    assert found.result["run"] == found.job
    assert Path(found.result["trace"]).is_dir()


def supervised(order, ended_before=False):
    """The outcome of a job whose supervisor is told just this; and its log."""
    folder = make()
    if ended_before:
        folder.ask_to_end()
    with folder.log.open("wb") as log:
        subprocess.run(command(folder.path), input=order, stdout=log, stderr=log, check=True)
    return folder.outcome(), folder.log.read_text()


def test_a_job_that_is_cancelled_before_its_supervisor_is_up_does_nothing():
    outcome, log = supervised(pack(PLAIN, PlainArguments("print:it ran"), Access()), ended_before=True)
    assert (outcome["state"], log) == ("cancelled", "")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_an_order_that_ends_in_the_middle_is_not_carried_out(share):
    order = pack(PLAIN, PlainArguments("print:it ran"), Access())
    outcome, log = supervised(order[: int(share * len(order))])
    assert (outcome["state"], outcome["error"]["slug"]) == ("failed", "job-not-started")
    assert "it ran" not in log


def test_room_for_the_result_is_kept_while_the_work_goes_on_and_given_back(tmp_path):
    job = find_or_start(PLAIN, PlainArguments(f"wait:{tmp_path / 'go'}"), Access()).job
    reserve = JobFolder.of(job).path / "reserve"
    wait_for(lambda: standing(job).phase == "run", "the work")
    assert reserve.stat().st_size > 100_000
    (tmp_path / "go").write_text("")
    wait_for(lambda: standing(job).finished, "the end")
    assert not reserve.exists()
