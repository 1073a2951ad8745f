"""What a job tells while it works can be read at once where it matters, and a disk that fails does not stop the work."""

import errno
import os
import signal

import pytest

from opguard_harness.jobs import reporting
from opguard_harness.jobs.reporting import JobProgress, Pulse
from opguard_harness.report.progress import Progress, Silent
from tests.support.fake_jobs import wait_for
from tests.support.job_folders import JOB, make


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return make()


def test_a_new_phase_is_written_without_waiting_for_the_next_round(folder, monkeypatch):
    monkeypatch.setattr(reporting, "_LOOK_S", 3600.0)
    monkeypatch.setattr(reporting, "_WRITE_S", 3600.0)
    with Pulse(folder) as pulse:
        assert folder.state()["phase"] == "starting"
        progress = JobProgress(JOB, pulse)
        progress.steps("reference", 3, 9)
        wait_for(lambda: folder.state()["phase"] == "reference", "the phase")
        assert (folder.state()["done"], folder.state()["planned"]) == (3, 9)
        progress.steps("reference", 4, 9)
    assert folder.state()["done"] == 4  # the end of the work writes what was not written yet


def test_a_phase_is_a_word_of_ours(folder):
    with pytest.raises(AssertionError):
        JobProgress(JOB, Pulse(folder)).steps("<script>", None, None)


def test_a_sign_of_life_comes_by_itself(folder, monkeypatch):
    monkeypatch.setattr(reporting, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(reporting, "_LOOK_S", 0.01)
    with Pulse(folder):
        first = folder.last_beat()
        wait_for(lambda: folder.last_beat().at_ns > first.at_ns, "another sign of life")


def test_a_disk_that_fails_is_complained_about_once(folder, monkeypatch, capsys):
    monkeypatch.setattr(reporting, "_LOOK_S", 0.01)
    monkeypatch.setattr(reporting, "HEARTBEAT_S", 0.0)
    failed = []

    def fail(self):
        failed.append(self)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Pulse(folder):
        monkeypatch.setattr(type(folder), "beat", fail)
        wait_for(lambda: len(failed) > 3, "some failures")
    assert capsys.readouterr().err.count("No space left") == 1


def test_a_wish_for_the_end_reaches_the_main_thread_as_a_signal_once(folder, monkeypatch):
    monkeypatch.setattr(reporting, "_LOOK_S", 0.01)
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with Pulse(folder):
            folder.ask_to_end()
            wait_for(lambda: heard, "the signal")
            looked = folder.last_beat()
            monkeypatch.setattr(reporting, "HEARTBEAT_S", 0.0)
            wait_for(lambda: folder.last_beat().at_ns > looked.at_ns, "more rounds")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize("progress", [Silent(), Progress()])
def test_steps_outside_of_a_job_are_nobodys_business(progress, capsys):
    progress.steps("reference", 1, 2)
    assert progress.job == ""
    assert capsys.readouterr().err == ""
