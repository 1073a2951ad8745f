"""A process is told from every other that has, had or will have its number."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from opguard_harness.jobs.owner import Owner
from tests.support.fake_jobs import wait_for

WAITS = [sys.executable, "-c", "input()"]


@pytest.fixture
def child():
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_this_process_lives():
    assert Owner.ours().alive()
    assert Owner.ours().pid == os.getpid()


def test_a_process_that_has_ended_does_not_live_even_as_a_zombie(child):
    owner = Owner.of(child.pid)
    assert owner.alive()
    os.kill(child.pid, signal.SIGKILL)
    wait_for(lambda: not owner.alive(), "the end of a child nobody has waited for")
    assert child.returncode is None  # so it is a zombie
    child.wait()
    assert not owner.alive()
    assert Owner.of(child.pid) is None


@pytest.mark.parametrize("change", [{"started": "1"}, {"boot": "another"}, {"space": "elsewhere"}])
def test_the_number_alone_is_not_the_process(change):
    assert not replace(Owner.ours(), **change).alive()


def test_a_machine_that_got_another_name_is_still_this_one():
    assert replace(Owner.ours(), host="before").alive()


def test_a_machine_is_known_again_after_a_restart_and_another_one_is_not():
    assert replace(Owner.ours(), boot="before").here
    assert not replace(Owner.ours(), boot="before", host="elsewhere").here
    assert not replace(Owner.ours(), space="a container").here


def test_a_kill_never_reaches_who_has_the_number_now(child):
    replace(Owner.of(child.pid), started="1").kill()
    child.communicate(b"\n")
    assert child.returncode == 0  # it ended as it was told to, by its own input


def refuse(pid):
    raise OSError(38, "Function not implemented")


@pytest.mark.parametrize("hold", [os.pidfd_open, refuse, None], ids=["held", "not held by this kernel", "not held by this system"])
def test_a_kill_reaches_its_process_and_nobody_else(child, monkeypatch, hold):
    if hold is None:
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(os, "pidfd_open", hold)
    replace(Owner.of(child.pid), started="1").kill()
    assert Owner.of(child.pid).alive()
    Owner.of(child.pid).kill()
    assert child.wait() == -signal.SIGKILL


def test_a_kill_of_one_that_has_gone_is_no_error(child):
    owner = Owner.of(child.pid)
    child.communicate(b"\n")
    owner.kill()


def test_it_is_read_as_it_was_written():
    assert Owner.read(Owner.ours().as_dict()) == Owner.ours()


@pytest.mark.parametrize("wrong", [None, [], {}, {**Owner.ours().as_dict(), "pid": "1"}, {**Owner.ours().as_dict(), "pid": -1}, {"pid": 1}])
def test_anything_else_is_nobody(wrong):
    assert Owner.read(wrong) is None
