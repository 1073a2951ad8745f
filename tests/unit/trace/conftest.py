from __future__ import annotations

import pytest

from opguard_core.trace import reader
from opguard_core.trace.codec import decode_segment
from opguard_core.trace.manifest import RunManifest, write_manifest
from opguard_core.trace.writer import TraceWriter
from tests.support.traces import event, frame, slot


@pytest.fixture
def run(tmp_path):
    """A finished run of one rank with three events."""
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.frame(frame(0))
    writer.stack(0, [0])
    for seq in range(3):
        writer.emit(event(seq), [slot(seq)])
    writer.close(ended="exit")
    write_manifest(tmp_path, RunManifest(ranks=[0, 1], complete=True))
    return tmp_path


@pytest.fixture
def remembered(monkeypatch):
    """Decode each segment once: decoding depends on its bytes alone, and thousands of damaged traces share most of them."""
    known = {}

    def decode(table, data, *, rows, path):
        if (table, data, rows) not in known:
            known[table, data, rows] = decode_segment(table, data, rows=rows, path=path)
        return known[table, data, rows]

    monkeypatch.setattr(reader, "decode_segment", decode)
