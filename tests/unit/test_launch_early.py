"""Ending a program in a private copy: the launcher's side with plain programs, the rank's side with made-up updates."""

import os
import subprocess
import sys

import pytest

from opguard_core.errors import ConfigError
from opguard_core.launch import child, early, folder
from opguard_core.launch.command import parse
from opguard_core.launch.early import EarlyEnd
from opguard_core.launch.startup import bootstrap
from opguard_core.plan.command import launch_argv
from opguard_core.plan.orders import Orders

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)\nwhile True: time.sleep(1)"


def test_the_command_line_carries_it_and_refuses_what_makes_no_sense():
    words = launch_argv("python", "out", ["python", "t.py"], plan="p.json", end_after=3, bare_steps=2, end_with=77)[3:]
    options = parse(["run", *words])
    assert (str(options.plan), options.end_after, options.bare_steps, options.end_with) == ("p.json", 3, 2, 77)
    for wrong in (["--end-after", "0"], ["--end-after", "-1"], ["--bare-steps", "2"]):
        with pytest.raises(ConfigError):
            parse(["run", "--out", "x", *wrong, "--", "python", "t.py"])


@pytest.mark.parametrize("code", ["import time\nwhile True: time.sleep(1)", STUBBORN], ids=["plain", "ignores-sigterm"])
def test_a_program_is_ended_when_it_is_over_and_not_before(code, monkeypatch):
    monkeypatch.setattr(child, "GRACE_S", 0.3)
    asked = []

    def over():
        asked.append(1)
        return [] if len(asked) > 3 else None

    ended = child.run_child([sys.executable, "-c", code], os.environ, over=over)
    assert (ended.over, ended.code, ended.signal, ended.status) == (True, None, None, 0)
    assert len(asked) == 4


def test_a_program_goes_on_while_its_starter_lives_and_ends_with_it(tmp_path):
    starter = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    direct, through_a_wrapper, gone = (early.orphaned(tmp_path, pid) for pid in (os.getppid(), starter.pid, 2**22 + 1))
    assert (direct(), through_a_wrapper(), gone()) == (None, None, [])
    starter.kill()
    starter.communicate()
    assert through_a_wrapper() == []


def test_a_program_that_ends_by_itself_is_not_over():
    ended = child.run_child([sys.executable, "-c", "raise SystemExit(7)"], os.environ, over=lambda: None)
    assert (ended.over, ended.code, ended.status) == (False, 7, 7)


def test_processes_outside_the_group_end_as_well(monkeypatch):
    monkeypatch.setattr(child, "GRACE_S", 0.3)
    code = "import os, subprocess, sys, time\nwords = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    code += f"os.write({writer}, b'%d' % subprocess.Popen(words, start_new_session=True).pid); time.sleep(600)"
    found = []

    def over():
        found.append(int(os.read(reader, 20)))
        return found

    assert child.run_child([sys.executable, "-c", code], os.environ, over=over).over
    assert not child.alive(found[0])
    os.close(reader)
    os.close(writer)


class Session:
    """Counts updates like a capture session."""

    def __init__(self):
        self.context = self.progress = self
        self.completed = 0


@pytest.fixture
def rank(tmp_path, monkeypatch):
    told = []

    def build(end_after, bare_steps, *, last=True):
        session = Session()
        orders = Orders(argv=[], user_root="/", end_after=end_after, bare_steps=bare_steps)
        end = EarlyEnd(tmp_path, orders, session, stop=lambda: told.append("stop"), tell=lambda **facts: told.append(facts))
        monkeypatch.setattr(end, "_goes_on_safely", lambda: last)
        monkeypatch.setattr("opguard_core.launch.early.os._exit", lambda status: told.append(("exit", status)))
        return end, session, told

    return build


def test_a_rank_closes_its_trace_after_the_steps_and_tells_after_the_bare_ones(rank):
    end, session, told = rank(2, 2)
    one, other = object(), object()
    for step in range(4):
        end._stepped(other, (), {})  # an optimizer that does not count
        session.completed += step < 2
        end._stepped(one, (), {})
        assert len(told) == (0, 1, 1, 3)[step]
    assert told[0] == "stop"
    assert told[1]["over"] is True
    assert {what: len(times) for what, times in told[1]["step_times"].items()} == {"observed": 1, "bare": 2}
    assert all(wall >= 0 and work >= 0 for times in told[1]["step_times"].values() for wall, work in times)
    assert told[2] == ("exit", 0), "there is no plan file, so nobody waits for this rank"


def test_where_the_trace_cannot_be_closed_under_way_nothing_is_timed(rank):
    end, session, told = rank(1, 5, last=False)
    session.completed = 1
    end._stepped(object(), (), {})
    assert told[:2] == ["stop", {"over": True, "step_times": {"observed": [], "bare": []}, "profiled": {}}]


def write(run, pid, **facts):
    (run / bootstrap.PROCESSES_NAME).mkdir(exist_ok=True)
    (run / bootstrap.PROCESSES_NAME / f"{pid}-{len(os.listdir(run / bootstrap.PROCESSES_NAME))}.txt").write_text(
        ascii({"pid": pid, "t_ns": pid, **facts})
    )


def test_the_run_is_over_when_nobody_waits_for_it_any_more(tmp_path, monkeypatch):
    over = early.watcher(tmp_path)
    write(tmp_path, 11, role="rank", folder="rank-00000", world_size=1, rank=0)
    assert over() is None
    monkeypatch.setattr(os, "getppid", lambda: 1 << 30)
    assert over() == [11]


def test_the_run_is_over_when_every_rank_of_the_world_has_told(tmp_path):
    over = early.watcher(tmp_path)
    (tmp_path / bootstrap.PROCESSES_NAME).mkdir()
    assert over() is None, "nothing has started"
    write(tmp_path, 10, role="agent")
    write(tmp_path, 11, role="rank", folder="rank-00000", world_size=2, rank=0)
    write(tmp_path, 11, over=True, step_times={"observed": [], "bare": [(5, 6)]})
    assert over() is None, "the second rank has not even started"
    write(tmp_path, 12, role="rank", folder="rank-00001", world_size=2, rank=1)
    assert over() is None
    write(tmp_path, 12, over=True)
    assert over() == [10, 11, 12]
    assert early.step_times(folder.read_processes(tmp_path)) == {"0": {"observed": [], "bare": [(5, 6)]}}
