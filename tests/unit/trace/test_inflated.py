"""Claims: what a segment takes in memory is known before it is taken, and a segment that would take too much is refused,
whatever its seals say."""

from __future__ import annotations

import struct
import subprocess
import sys

import pyarrow as pa
import pytest

from opguard_core.errors import CorruptSegment, TraceFormatError
from opguard_core.trace import codec, index, manifest
from opguard_core.trace.codec import decode_segment, encode_segment, to_batch
from opguard_core.trace.inflated import inflated_bytes
from opguard_core.trace.schema import FrameRow, LifetimeRow
from tests.support.traces import event, frame, slot

ROWS = {
    "events": [event(seq, args=f"x{seq}") for seq in range(50)],
    "slots": [slot(seq) for seq in range(50)],
    "frames": [frame(number) for number in range(50)],
    "stacks": [(number, [0, number]) for number in range(50)],
    "lifetimes": [LifetimeRow(number, 8, 0, None) for number in range(50)],
}


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("table", ROWS)
def test_the_prediction_is_what_it_takes(table, compression):
    data = encode_segment(table, [to_batch(table, ROWS[table])], compression).to_pybytes()
    taken = decode_segment(table, data, rows=50, path="x").nbytes
    assert taken <= inflated_bytes(data) <= taken + 64 * (1 + len(pa.ipc.open_file(data).schema) * 4)  # buffers are padded to 64 bytes


def forged(table, rows, length):
    """A small segment whose largest compressed buffer claims to inflate to ``length`` bytes."""
    batch = to_batch(table, rows)
    data = bytearray(encode_segment(table, [batch], "zstd").to_pybytes())
    honest = struct.pack("<q", max(buffer.size for column in batch.columns for buffer in column.buffers() if buffer))
    at = data.find(honest)
    assert at >= 0
    data[at : at + 8] = struct.pack("<q", length)
    return bytes(data)


@pytest.mark.parametrize("length", [codec.MAX_INFLATED_BYTES + 1, 1 << 40, 2**63 - 1])
def test_a_claim_of_terabytes_is_refused(length):
    data = forged("lifetimes", [LifetimeRow(7, 8, 9, None)] * 4096, length)
    with pytest.raises(CorruptSegment, match="inflates too far"):
        decode_segment("lifetimes", data, rows=4096, path="x")


BOMB = """
import resource, sys
from pathlib import Path
from opguard_core.errors import CorruptSegment
from opguard_core.trace.codec import decode_segment
data = Path(sys.argv[1]).read_bytes()
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    decode_segment("lifetimes", data, rows=640 << 16, path=Path("x"))
except CorruptSegment as error:
    print(error.message)
"""


@pytest.mark.full
def test_a_real_bomb_is_refused_in_little_memory(tmp_path):
    small = [to_batch("lifetimes", [LifetimeRow(7, 8, 9, None)] * (1 << 16))] * 640
    (tmp_path / "bomb").write_bytes(encode_segment("lifetimes", small, "zstd").to_pybytes())
    assert (tmp_path / "bomb").stat().st_size < 1 << 20  # of 1.2 GB
    done = subprocess.run([sys.executable, "-c", BOMB, str(tmp_path / "bomb")], capture_output=True, text=True, check=False)
    assert "inflates too far" in done.stdout, done.stderr


@pytest.mark.parametrize("cut", [9, 40, 200, 400])
def test_headers_that_point_outside_themselves(cut):
    data = bytearray(encode_segment("slots", [to_batch("slots", ROWS["slots"])], "zstd").to_pybytes())
    data[cut : cut + 4] = b"\xff\xff\xff\x7f"
    with pytest.raises(TraceFormatError):
        decode_segment("slots", bytes(data), rows=50, path="x")


def padded(texts):
    """Frames whose categories have texts that no row uses."""
    batch = to_batch("frames", [frame(0)])
    column = batch.schema.get_field_index("category")
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(["user", *texts]))
    return batch.set_column(column, batch.schema.field(column), dictionary)


def test_texts_that_no_row_uses_are_refused():
    data = encode_segment("frames", [padded(["y"])], "none").to_pybytes()
    with pytest.raises(CorruptSegment, match="padded"):
        decode_segment("frames", data, rows=1, path="x")


def test_two_batches_are_refused():
    sink = pa.BufferOutputStream()
    batch = to_batch("frames", [FrameRow(0, "", "user", "", 0, 0, 0, 0, 0, "", "", "")])
    with pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)
        file.write_batch(batch)
    with pytest.raises(CorruptSegment, match="padded"):
        decode_segment("frames", sink.getvalue().to_pybytes(), rows=2, path="x")


def test_a_manifest_of_very_many_values_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "MAX_MANIFEST_VALUES", 1000)
    with pytest.raises(TraceFormatError, match="at most 1000 values"):
        manifest.parse_rank_manifest(b'{"x": [' + b"[]," * 1000 + b"[]]}", tmp_path)


def test_an_index_line_of_very_many_values_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(index, "MAX_LINE_BYTES", 40)
    writer = index.IndexWriter(tmp_path, {"format": 1})
    writer.append(index.Group((), tuple((number, number) for number in range(0, 40, 2))))
    writer.close()
    with pytest.raises(TraceFormatError, match="Index line too long"):
        index.read_index(tmp_path / "index.log")
