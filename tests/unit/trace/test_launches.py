"""Claims: device work comes back as it was written, added up over segments; traces and readers without it lose nothing else."""

from __future__ import annotations

import errno

import orjson
import pytest

from opguard_core.errors import TraceFormatError
from opguard_core.trace import commit
from opguard_core.trace.codec import to_batch
from opguard_core.trace.index import parse_index
from opguard_core.trace.manifest import read_rank_manifest
from opguard_core.trace.reader import Run
from opguard_core.trace.schema import LaunchRow
from opguard_core.trace.writer import TraceWriter
from tests.support.traces import event, frame, reseal, slot


def kernel(seq, order=0, name="gemm", **changes):
    return LaunchRow(seq, None, order, "kernel", name, 0, 1, 0, None)._replace(**changes)


def apart(after, order=0, **changes):
    return LaunchRow(None, after, order, "copy", "", None, 1, 64, True)._replace(**changes)


@pytest.fixture
def write(tmp_path):
    """Write parts, each followed by a flush; gives the rank's folder."""

    def written(*parts):
        writer = TraceWriter(tmp_path / "rank-00000")
        writer.frame(frame(0))
        writer.stack(0, [0])
        for seq, rows in enumerate(parts):
            writer.emit(event(seq), [slot(seq)])
            if rows:
                writer.launches(to_batch("launches", rows))
            writer.flush()
        writer.close(ended="exit")
        return tmp_path / "rank-00000"

    return written


def read(rank):
    return Run.open(rank.parent).ranks[0]


def test_rows_come_back_by_event_those_without_one_first(write):
    rows = [kernel(1), kernel(0, 1, "copy_kernel", num_bytes=3), kernel(0), apart(0), apart(None, touches=False)]
    launches = read(write(rows, [])).launches
    assert list(launches) == [apart(None, touches=False), apart(0), kernel(0), kernel(0, 1, "copy_kernel", num_bytes=3), kernel(1)]
    assert launches.num_unattributed == 2
    assert launches.of(0) == [kernel(0), kernel(0, 1, "copy_kernel", num_bytes=3)]
    assert launches.of(7) == []


def test_alike_rows_of_several_segments_are_added_up(write):
    launches = read(
        write([kernel(0), kernel(0, 1, "other")], [kernel(0, 2), apart(0), kernel(0, 3, stream=None)], [apart(0, 1, count=2)])
    ).launches
    assert list(launches) == [apart(0, count=3, num_bytes=128), kernel(0, count=2), kernel(0, 1, "other"), kernel(0, 3, stream=None)]


def test_a_trace_without_the_table_has_no_rows(write):
    trace = read(write([], []))
    assert len(trace.launches) == trace.launches.num_unattributed == 0
    assert "further" not in orjson.loads((trace.path / "manifest.json").read_bytes())


def test_readers_that_know_no_such_table_find_only_what_they_know(write):
    rank = write([kernel(0)], [kernel(1)])
    record = orjson.loads((rank / "manifest.json").read_bytes())
    assert {entry["table"] for entry in record["segments"]} == {"frames", "stacks", "slots", "events"}
    assert [entry["table"] for entry in record["further"]] == ["launches", "launches"]
    assert all(b'"segments":[{"file":"launches' not in line for line in (rank / "index.log").read_bytes().splitlines())


def test_tables_of_a_later_release_are_skipped(write):
    rank = write([kernel(0)])
    reseal(rank / "manifest.json", lambda record: record["further"].append({"file": "weather-000000.arrow", "table": "weather", "of": 3}))
    trace = read(rank)
    assert trace.torn is None
    assert list(trace.launches) == [kernel(0)]


@pytest.mark.parametrize(
    "further", [3, [3], [{"table": "launches", "file": "../launches-000000.arrow"}], [{"file": "launches-000000.arrow"}]]
)
def test_a_bad_list_is_refused(write, further):
    rank = write([kernel(0)])
    reseal(rank / "manifest.json", lambda record: record.update(further=further))
    with pytest.raises(TraceFormatError):
        read_rank_manifest(rank)


def test_the_index_alone_is_enough(write):
    rank = write([kernel(0)], [kernel(1)])
    (rank / "manifest.json").unlink()
    assert list(read(rank).launches) == [kernel(0), kernel(1)]
    index = parse_index((rank / "index.log").read_bytes(), rank)
    assert [[entry.table for entry in group.segments][-1] for group in index.groups] == ["launches", "launches"]


def test_a_missing_segment_ends_the_prefix(write):
    rank = write([kernel(0)], [kernel(1)])
    (rank / "launches-000001.arrow").unlink()
    trace = read(rank)
    assert trace.torn is not None
    assert trace.torn.slug == "segment-missing"
    assert list(trace.launches) == [kernel(0)]


def test_rows_that_the_disk_refuses_are_counted(write, monkeypatch):
    real = commit.write_atomic

    def full(path, data):
        if path.name == "launches-000000.arrow":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(commit, "write_atomic", full)
    trace = read(write([kernel(0), kernel(0, 1, "other")], [kernel(1)]))
    assert trace.manifest.drops.other == {"launches": 2}
    assert trace.manifest.drops.ranges == ((0, 0),)
    assert list(trace.launches) == [kernel(1)]
