"""Claims: a disk that fills up or a folder that vanishes is a counted drop, never an exception in the training; what was
stored before stays readable, and what is stored after room came back is whole."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys

import pytest

from opguard_core.errors import FlushFailed
from opguard_core.trace import commit, files, index
from opguard_core.trace.reader import Run
from opguard_core.trace.schema import LifetimeRow
from opguard_core.trace.writer import TraceWriter
from tests.support.traces import event, frame, read_rank, slot


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def emit(writer, first, last):
    for seq in range(first, last + 1):
        writer.emit(event(seq, user_frame=seq), [slot(seq)])


def test_a_full_disk_loses_exactly_what_could_not_be_stored(tmp_path, monkeypatch):
    writer = TraceWriter(tmp_path / "rank-00000")
    emit(writer, 0, 4)
    writer.flush()
    with monkeypatch.context() as patched:
        patched.setattr(commit, "write_atomic", full)
        writer.frame(frame(0))
        writer.stack(0, [0])
        writer.lifetime(LifetimeRow(1, 2, 3, None))
        emit(writer, 5, 9)
        writer.flush()
        emit(writer, 10, 11)
        writer.flush()
    emit(writer, 12, 14)
    manifest = writer.close(ended="exit")
    found = read_rank(tmp_path)
    assert [row.seq for row in found.events] == [*range(5), 12, 13, 14]
    # Interned rows survive, because later events refer to them.
    assert (found.frames, found.stacks, found.lifetimes) == ([frame(0)], [[0]], [LifetimeRow(1, 2, 3, None)])
    assert manifest.drops.ranges == ((5, 11),)
    assert manifest.drops.reasons == {"disk": 7}
    assert "No space left on device" in manifest.drops.errors[0]
    assert manifest.complete


def test_a_line_that_does_not_fit_into_the_index_is_taken_back(tmp_path, monkeypatch):
    writer = TraceWriter(tmp_path / "rank-00000")
    original = index.write_all

    def half(descriptor, data):
        original(descriptor, data[: len(data) // 2])
        full()

    with monkeypatch.context() as patched:
        patched.setattr(index, "write_all", half)
        emit(writer, 0, 2)
        writer.flush()
    emit(writer, 3, 4)
    writer.flush()
    trace = Run.open(tmp_path).ranks[0]
    assert trace.torn is not None
    assert (trace.torn.slug, trace.dropped) == ("not-finished", ((0, 2),))
    assert [row.seq for row in read_rank(tmp_path).events] == [3, 4]
    writer.close(ended="exit")
    assert sorted(path.name for path in (tmp_path / "rank-00000").glob("*-000000.arrow")) == []


def test_an_index_that_cannot_be_repaired_ends_the_trace(tmp_path, monkeypatch):
    writer = TraceWriter(tmp_path / "rank-00000")
    emit(writer, 0, 1)
    writer.flush()
    with monkeypatch.context() as patched:
        patched.setattr(index, "write_all", full)
        patched.setattr(index.os, "ftruncate", full)
        emit(writer, 2, 3)
        writer.flush()
    emit(writer, 4, 5)
    writer.flush()
    trace = Run.open(tmp_path).ranks[0]
    assert trace.num_events == 2
    assert writer.close(ended="exit").drops.ranges == ((2, 5),)


def test_a_folder_that_vanishes(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000")
    emit(writer, 0, 1)
    writer.flush()
    shutil.rmtree(tmp_path / "rank-00000")
    emit(writer, 2, 3)
    writer.source("0" * 64, "text")
    manifest = writer.close(ended="exit")
    assert not manifest.complete
    assert manifest.drops.ranges == ((2, 3),)
    assert manifest.drops.other == {"source": 1, "manifest": 1}


def test_a_manifest_that_fits_no_json_leaves_the_index_to_tell(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000")
    emit(writer, 0, 1)
    assert not writer.close(ended="exit", coverage={"count": 2**70}).complete
    trace = Run.open(tmp_path).ranks[0]
    assert trace.torn is not None
    assert (trace.torn.slug, trace.num_events) == ("not-finished", 2)


def test_values_unknown_to_json_become_texts(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000")
    assert writer.close(ended="exit", contract={"path": tmp_path, 3: float("nan")}).complete
    assert Run.open(tmp_path).ranks[0].manifest.contract == {"path": str(tmp_path), "3": None}


FILE_SIZE_LIMIT = """
import resource, sys
from pathlib import Path
from opguard_core.trace.writer import TraceWriter
from tests.support.traces import event, slot

writer = TraceWriter(sys.argv[1])
writer.emit(event(0), [slot(0)])
writer.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
for seq in range(1, 50):
    writer.emit(event(seq), [slot(seq)])
writer.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for seq in range(50, 60):
    writer.emit(event(seq), [slot(seq)])
print(writer.close(ended="exit").drops.ranges)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no file size limits")
def test_a_real_limit_on_file_size(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FILE_SIZE_LIMIT, str(tmp_path / "rank-00000")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "((1, 49),)\n"
    assert [row.seq for row in read_rank(tmp_path).events] == [0, *range(50, 60)]
    assert not [path for path in (tmp_path / "rank-00000").iterdir() if path.name.endswith(".tmp")]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "manifest.json"
    files.write_atomic(path, b"old")
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        files.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_said_before_the_first_event(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FlushFailed, match="Cannot write the trace folder") as caught:
        TraceWriter(tmp_path / "file" / "rank-00000")
    assert caught.value.as_dict()["slug"] == "trace-folder-unwritable"


def test_a_second_writer_is_refused_while_and_after_the_first(tmp_path):
    first = TraceWriter(tmp_path / "rank-00000")
    for _ in range(2):
        with pytest.raises(FlushFailed, match="already holds a trace") as caught:
            TraceWriter(tmp_path / "rank-00000")
        assert caught.value.as_dict()["slug"] == "trace-folder-in-use"
        first.emit(event(0), [slot(0)])
        first.close(ended="exit")
    assert read_rank(tmp_path).events == [event(0)]
