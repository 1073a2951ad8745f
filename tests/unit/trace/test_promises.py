"""Claims: a segment whose content is not what the manifest, the schema and the other tables promise is refused, even where every
digest holds."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pytest

from opguard_core.errors import CorruptSegment
from opguard_core.trace import schema
from opguard_core.trace.codec import decode_segment, encode_segment, to_batch
from opguard_core.trace.reader import Run
from opguard_core.trace.writer import TraceWriter
from tests.support.traces import event, frame, read_rank, reseal, slot


def replace_segment(run, table, batches, **changes):
    """Put another segment in place of the stored one and make the manifest vouch for it."""
    data = encode_segment(table, batches, "none").to_pybytes() if not isinstance(batches, bytes) else batches
    (run / "rank-00000" / f"{table}-000000.arrow").write_bytes(data)

    def change(record):
        (entry,) = (entry for entry in record["segments"] if entry["table"] == table)
        entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}

    reseal(run / "rank-00000" / "manifest.json", change)


@pytest.mark.parametrize(
    ("table", "rows", "changes", "match"),
    [
        ("events", [event(0), event(1)], {}, "Wrong number of rows.*expected 3, found 2"),
        ("events", [event(0), event(2), event(1)], {}, "Segment of other events"),
        ("events", [event(0), event(0), event(2)], {}, "not in order"),
        ("events", [event(0), event(5), event(6)], {"last_seq": 6}, "missing without a record"),
        ("slots", [slot(0), slot(0), slot(1)], {"last_seq": 1}, None),
        ("slots", [slot(0), slot(2), slot(1), slot(2)], {"rows": 4}, "belong to no event"),
        ("slots", [slot(0), slot(3)], {"rows": 2, "last_seq": 3}, "Slots of other events"),
        ("frames", [frame(1)], {}, "not dense"),
        ("stacks", [(0, [7])], {}, "unknown frames"),
    ],
)
def test_content_that_is_not_as_promised(run, table, rows, changes, match):
    replace_segment(run, table, [to_batch(table, rows)], **changes)
    if match is None:
        read_rank(run)
        return
    with pytest.raises(CorruptSegment, match=match):
        read_rank(run)


def test_slots_without_their_events(run):
    def change(record):
        record["segments"] = [entry for entry in record["segments"] if entry["table"] != "events"]

    reseal(run / "rank-00000" / "manifest.json", change)
    with pytest.raises(CorruptSegment, match="Slots without events"):
        Run.open(run)


def test_groups_that_leave_events_out(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000")
    for seq in range(3):
        writer.emit(event(seq), [])
        writer.flush()
    writer.close(ended="exit")
    reseal(tmp_path / "rank-00000" / "manifest.json", lambda record: record["segments"].pop(1))
    with pytest.raises(CorruptSegment, match="missing without a record"):
        Run.open(tmp_path)
    reseal(tmp_path / "rank-00000" / "manifest.json", lambda record: record["segments"][1].update(first_seq=0))
    with pytest.raises(CorruptSegment, match="run backwards"):
        Run.open(tmp_path)


def test_arrow_files_that_are_something_else(run):
    replace_segment(run, "slots", b"ARROW1\0\0" + bytes(100) + b"ARROW1")
    with pytest.raises(CorruptSegment, match="Not a readable Arrow file"):
        read_rank(run)
    replace_segment(run, "slots", encode_segment("frames", [to_batch("frames", [frame(0)] * 3)], "none").to_pybytes())
    with pytest.raises(CorruptSegment, match="Not a slots segment"):
        read_rank(run)


def _with_column(table, rows, name, column):
    batch = to_batch(table, rows)
    position = schema.TABLES[table].get_field_index(name)
    return pa.record_batch([*batch.columns[:position], column, *batch.columns[position + 1 :]], schema=schema.TABLES[table])


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("nbytes", pa.array([None, 1], pa.uint64())),
        ("dtype", pa.array([None, "float32"], pa.dictionary(pa.int32(), pa.string()))),
        ("dtype", pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([None, "x"], pa.string()))),
        ("dtype", pa.DictionaryArray.from_arrays(pa.array([0, 9], pa.int32()), pa.array(["a", "x"], pa.string()), safe=False)),
    ],
)
def test_values_that_a_column_must_not_hold(tmp_path, name, column):
    data = encode_segment("slots", [_with_column("slots", [slot(0), slot(1)], name, column)], "none").to_pybytes()
    with pytest.raises(CorruptSegment):
        decode_segment("slots", data, rows=2, path=tmp_path)


def test_nulls_inside_a_stack(tmp_path):
    batch = _with_column("stacks", [(0, [1])], "frames", pa.array([[1, None]], pa.list_(pa.uint32())))
    with pytest.raises(CorruptSegment, match="Null in column frames"):
        decode_segment("stacks", encode_segment("stacks", [batch], "none").to_pybytes(), rows=1, path=tmp_path)
