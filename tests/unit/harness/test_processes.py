"""Programs are run to their end, and ended with everything they started when they must be."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import anyio
import pytest

from opguard_core.errors import Interrupted, LaunchFailed, TimedOut
from opguard_harness.compare import family, processes
from opguard_harness.compare.processes import Interrupts, Spawn, run_to_end

# Starts a grandchild in a session of its own (as torchrun does), says who is there, and waits for ever.
FAMILY = """
    import os, signal, subprocess, sys
    grandchild = subprocess.Popen([sys.executable, "-c", "import signal; {ignore}print('up', flush=True); signal.pause()"],
                                  start_new_session=True, stdout=subprocess.PIPE)
    grandchild.stdout.readline()
    {own}
    print(os.getpid(), grandchild.pid, flush=True)
    signal.pause()
"""
IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def spawn(folder: Path, code: str, **changes) -> Spawn:
    values = {
        "command": [sys.executable, "-c", textwrap.dedent(code)],
        "cwd": folder,
        "env": {**os.environ, "OPGUARD_TEST": str(folder)},
        "stdout": folder / "stdout.txt",
        "stderr": folder / "stderr.txt",
        "mark": f"OPGUARD_TEST={folder}",
        "timeout_s": None,
        "label": "reference side",
    }
    return Spawn(**{**values, **changes})


def run(order: Spawn, tick=lambda elapsed: None) -> int:
    with Interrupts() as interrupts:
        return anyio.run(partial(run_to_end, order, interrupts, tick))


def alive(pid: int) -> bool:
    return any(row.pid == pid and not row.zombie for row in family.processes())


class Clock:
    """The real clock, which a test can put forward."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


def members(order: Spawn) -> list[int]:
    return [int(word) for word in order.stdout.read_text().split()]


@pytest.mark.parametrize(
    ("code", "expected"),
    [("pass", 0), ("raise SystemExit(7)", 7), ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
)
def test_exit_codes_and_signals_come_back(tmp_path, code, expected):
    assert run(spawn(tmp_path, code)) == expected


def test_output_goes_to_files_and_standard_input_is_empty(tmp_path):
    run(spawn(tmp_path, "import sys; print(sys.stdin.read() == ''); print('e', file=sys.stderr)"))
    assert (tmp_path / "stdout.txt").read_text() == "True\n"
    assert (tmp_path / "stderr.txt").read_text() == "e\n"


def test_a_program_that_does_not_exist_is_a_launch_error(tmp_path):
    with pytest.raises(LaunchFailed, match="/nope"):
        run(spawn(tmp_path, "", command=["/nope/python"]))


@pytest.mark.parametrize("ignore", ["", IGNORE], ids=["obedient", "ignores SIGTERM"])
def test_a_timeout_ends_the_whole_family(tmp_path, monkeypatch, ignore):
    # The grandchild lives in another session: a signal to the process group alone would not reach it.
    monkeypatch.setattr(processes, "GRACE_S", 1.0)
    order = spawn(tmp_path, FAMILY.format(ignore=ignore, own=ignore), timeout_s=100.0)
    clock = Clock()
    monkeypatch.setattr(processes, "time", clock)

    def tick(elapsed: float) -> None:
        if len(order.stdout.read_text().split()) == 2:
            clock.ahead_s = 100.0

    with pytest.raises(TimedOut, match="reference side did not end within 100 s"):
        run(order, tick)
    assert not any(alive(pid) for pid in members(order))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_the_whole_family(tmp_path, monkeypatch, number):
    monkeypatch.setattr(processes, "GRACE_S", 1.0)
    order = spawn(tmp_path, FAMILY.format(ignore="", own=""))
    sent = []

    def tick(elapsed: float) -> None:
        if not sent and len(order.stdout.read_text().split()) == 2:
            sent.append(elapsed)
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    with pytest.raises(Interrupted):
        run(order, tick)
    assert not any(alive(pid) for pid in members(order))
    assert signal.getsignal(number) is before


def test_a_second_interrupt_does_not_wait_for_the_grace_period(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 3600.0)
    order = spawn(tmp_path, FAMILY.format(ignore=IGNORE, own=IGNORE))
    real, looks = family.family, []

    def looked(root, mark):  # looked at only while the family is being ended
        looks.append(root)
        if len(looks) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(root, mark)

    def tick(elapsed: float) -> None:
        if not looks and len(order.stdout.read_text().split()) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(processes, "family", looked)
    with pytest.raises(Interrupted):
        run(order, tick)
    assert not any(alive(pid) for pid in members(order))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
def test_only_the_exact_variable_makes_a_process_one_of_the_family(tmp_path):
    order = spawn(tmp_path, FAMILY.format(ignore="", own=""))
    same = {"OPGUARD_TEST": str(tmp_path)}
    others = [
        {"OPGUARD_TEST": f"{tmp_path}2"},
        {"OTHER": f"x{order.mark}"},
        {"OTHER": str(tmp_path)},
        {"PREFIX_OPGUARD_TEST": str(tmp_path)},
    ]
    waiting = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, **variables})
        for variables in [same, *others]
    ]
    try:
        found = {pid for pid, _ in family.family(waiting[0].pid, order.mark)}
        assert found & {process.pid for process in waiting} == {waiting[0].pid}
        carrying = {pid for pid, _ in family.family(-1, order.mark)}
        assert carrying == {waiting[0].pid}
    finally:
        for process in waiting:
            process.communicate(b"\n")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
def test_a_process_that_is_older_than_ours_is_never_one_of_the_family(tmp_path):
    row = next(row for row in family.processes() if row.pid == os.getpid())
    entry = Path("/proc/self/environ").read_bytes().split(b"\0")[0]
    assert family.carries(row, os.fsdecode(entry), row.started)
    assert not family.carries(row, os.fsdecode(entry), str(int(row.started) + 1))


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
