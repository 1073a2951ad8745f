"""Claims: a forgotten writer is closed at interpreter exit and never keeps the interpreter alive; a forked child writes
nothing; signals and a dying writing thread neither hang nor raise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from opguard_core.errors import FlushFailed
from opguard_core.trace.commit import Committer
from opguard_core.trace.reader import Run
from opguard_core.trace.schema import LifetimeRow
from opguard_core.trace.writer import TraceWriter
from tests.support.traces import event, read_rank, slot

PREAMBLE = """
import atexit, os, signal, sys, threading
from opguard_core.trace.writer import TraceWriter
from tests.support.traces import event, slot

folder = sys.argv[1]
writer = TraceWriter(folder)

def emit(first, last):
    for seq in range(first, last + 1):
        writer.emit(event(seq), [slot(seq)])
"""


def run(tmp_path, program):
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + program, str(tmp_path / "rank-00000")], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_forgotten_writer_is_closed_at_exit(tmp_path):
    done = run(tmp_path, "emit(0, 99)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    trace = Run.open(tmp_path).ranks[0]
    assert (trace.torn, trace.num_events, trace.manifest.ended) == (None, 100, "unknown")


def test_an_exception_keeps_its_traceback_and_exit_code(tmp_path):
    done = run(tmp_path, "emit(0, 9)\nraise KeyError('theirs')")
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: 'theirs'\n")
    assert len(read_rank(tmp_path).events) == 10


def test_closing_in_an_exit_handler_of_the_session(tmp_path):
    done = run(tmp_path, "atexit.register(lambda: writer.close(ended='exit'))\nthreading.Thread(target=emit, args=(0, 49)).start()")
    assert (done.returncode, done.stderr) == (0, "")
    manifest = Run.open(tmp_path).ranks[0].manifest
    assert (manifest.ended, manifest.complete) == ("exit", True)
    assert len(read_rank(tmp_path).events) == 50


def test_leaving_without_exit_handlers_tears_the_tail(tmp_path):
    done = run(tmp_path, "emit(0, 9)\nwriter.flush()\nemit(10, 19)\nos._exit(7)")
    assert done.returncode == 7
    trace = Run.open(tmp_path).ranks[0]
    assert trace.torn is not None
    assert 10 <= trace.num_events <= 20


def test_closing_in_a_signal_handler_while_the_main_thread_emits(tmp_path):
    program = """
def stop(number, frame):
    writer.close(ended="signal")
    raise SystemExit(5)

signal.signal(signal.SIGTERM, stop)
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
seq = 0
while True:
    emit(seq, seq)
    seq += 1
"""
    done = run(tmp_path, program)
    assert (done.returncode, done.stderr) == (5, "")
    manifest = Run.open(tmp_path).ranks[0].manifest
    assert (manifest.ended, manifest.complete, manifest.drops.events) == ("signal", True, 0)
    assert [row.seq for row in read_rank(tmp_path).events] == list(range(manifest.segments[-1].last_seq + 1))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_writes_nothing(tmp_path):
    program = """
emit(0, 9)
child = os.fork()
if child == 0:
    emit(10, 5000)
    writer.flush()
    writer.source("0" * 64, "text")
    print(writer.close(ended="exit").complete)
    raise SystemExit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
emit(10, 19)
writer.close(ended="exit")
"""
    done = run(tmp_path, "import warnings; warnings.simplefilter('ignore')" + program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
    assert read_rank(tmp_path).events == [event(seq) for seq in range(20)]
    manifest = Run.open(tmp_path).ranks[0].manifest
    assert (manifest.drops.events, manifest.drops.other) == (0, {})


def test_what_a_forked_child_is_left_with(tmp_path):
    # The same steps as after os.fork(), in this process: nothing that is emitted afterwards goes anywhere.
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.emit(event(0), [])
    writer.flush()
    writer._before_fork()
    before = {path.name: path.read_bytes() for path in (tmp_path / "rank-00000").iterdir()}
    writer._after_fork_in_child()
    writer._pid = -1
    writer.emit(event(1), [])
    writer.lifetime(LifetimeRow(0, 0, 0, None))
    writer.flush()
    assert not writer.close(ended="exit").complete
    writer._close_at_exit()
    assert {path.name: path.read_bytes() for path in (tmp_path / "rank-00000").iterdir()} == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_forked_while_another_thread_holds_the_lock(tmp_path):
    program = """
busy = threading.Thread(target=emit, args=(0, 20000))
busy.start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        writer.emit(event(0), [])
        writer.flush()
        writer.close(ended="exit")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
busy.join()
"""
    done = run(tmp_path, "import warnings; warnings.simplefilter('ignore')" + program)
    assert (done.returncode, done.stderr) == (0, "")
    assert Run.open(tmp_path).ranks[0].num_events == 20001


def test_a_fork_finds_no_writing_thread(tmp_path):
    program = """
import threading
before = []
os.register_at_fork(before=lambda: before.append([thread.name for thread in threading.enumerate()]))
"""
    # Handlers for before a fork run last registered first: this one has to be there before the writer's.
    body = """
emit(0, 9)
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    emit(10 * len(before), 10 * len(before) + 9)
    writer.flush()
print(before, [thread.name for thread in threading.enumerate()])
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import os\n" + program + PREAMBLE + body, str(tmp_path / "rank-00000")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[['MainThread'], ['MainThread'], ['MainThread']] ['MainThread', 'opguard-trace-writer']\n"
    assert [row.seq for row in read_rank(tmp_path).events] == list(range(40))


def test_a_thread_that_cannot_be_had_after_a_fork_is_counted(tmp_path, monkeypatch):
    writer = TraceWriter(tmp_path / "rank-00000", buffer_bytes=1)
    writer.emit(event(0), [])
    writer.flush()
    writer._before_fork()

    def refused(self):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        writer._after_fork_in_parent()
        with pytest.raises(FlushFailed, match="Cannot start the thread"):
            TraceWriter(tmp_path / "rank-00001", rank=1)
    for seq in (1, 2):
        writer.emit(event(seq), [slot(seq)])
    writer.flush()
    writer._before_fork()
    writer._after_fork_in_parent()
    assert writer.close(ended="exit").drops.ranges == ((1, 2),)


def test_closing_while_this_very_thread_is_interrupted_inside_emit(tmp_path):
    # What a signal handler does when it interrupts `emit`: the lock is held further down the same stack.
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.emit(event(0), [slot(0)])
    with writer._intake._changed:
        writer.flush()
        assert writer.close(ended="signal").complete
    assert read_rank(tmp_path).events == [event(0)]


def test_closing_twice_changes_nothing(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.emit(event(0), [])
    first = writer.close(ended="exit")
    before = (tmp_path / "rank-00000" / "manifest.json").read_bytes()
    writer.emit(event(1), [])
    writer.flush()
    assert writer.close(ended="signal") is first
    assert (tmp_path / "rank-00000" / "manifest.json").read_bytes() == before


def test_the_training_may_change_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = TraceWriter("rank-00000")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    writer.emit(event(0), [])
    writer.close(ended="exit")
    assert read_rank(tmp_path).events == [event(0)]


def test_a_writing_thread_that_dies_is_counted_and_frees_everybody(tmp_path, monkeypatch):
    def unforeseen(self, rows):
        raise RuntimeError("unforeseen")

    seen = []
    monkeypatch.setattr(threading, "excepthook", lambda info: seen.append(info.exc_type))
    writer = TraceWriter(tmp_path / "rank-00000", buffer_bytes=1)
    writer.emit(event(0), [slot(0)])
    writer.flush()
    monkeypatch.setattr(Committer, "add_events", unforeseen)
    for seq in range(1, 6):
        writer.emit(event(seq), [slot(seq)])
    writer.flush()
    manifest = writer.close(ended="exit")
    assert seen == [RuntimeError]
    assert manifest.drops.ranges == ((1, 5),)
    assert set(manifest.drops.reasons) <= {"writer-died", "writer-closed", "not-emitted"}
    assert read_rank(tmp_path).events == [event(0)]


def test_signals_stay_with_the_threads_of_the_training(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.emit(event(0), [])
    writer.flush()
    status = f"/proc/self/task/{writer._flusher._thread.native_id}/status"
    if not os.path.exists(status):
        pytest.skip("needs /proc")
    with open(status) as file:
        blocked = int(next(line for line in file if line.startswith("SigBlk")).split()[1], 16)
    writer.close(ended="exit")
    assert blocked >> (signal.SIGTERM - 1) & 1
    assert blocked >> (signal.SIGINT - 1) & 1
    assert not blocked >> (signal.SIGSEGV - 1) & 1
