"""Claims: lifetimes that came packed are stored as rows would be, before the rows that follow them, and survive a full disk."""

from __future__ import annotations

import numpy as np

from opguard_core.trace import commit
from opguard_core.trace.codec import to_batch
from opguard_core.trace.packed import LIFETIME, lifetimes_batch
from opguard_core.trace.schema import LifetimeRow
from opguard_core.trace.writer import TraceWriter
from tests.support.traces import event, read_rank

ROWS = [LifetimeRow(7, 2**40, 3, 9), LifetimeRow(2, 0, 0, 0), LifetimeRow(2**32 - 1, 2**62, 2**62, 2**62)]


def packed(rows):
    return np.array([tuple(row) for row in rows], LIFETIME).tobytes()


def test_packed_rows_give_the_batch_of_the_rows():
    assert lifetimes_batch([packed(ROWS[:1]), packed(ROWS[1:])]).equals(to_batch("lifetimes", ROWS))


def test_packed_rows_come_before_the_rows_of_the_end(tmp_path, monkeypatch):
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.packed_lifetimes(packed(ROWS[:2]))
    writer.emit(event(0), [])
    with monkeypatch.context() as patched:

        def full(path, data):
            raise OSError(28, "No space left on device")

        patched.setattr(commit, "write_atomic", full)
        writer.flush()
    writer.packed_lifetimes(packed(ROWS[2:]))
    writer.lifetime(LifetimeRow(9, 1, 2, None))
    manifest = writer.close(ended="exit")
    assert sorted(read_rank(tmp_path).lifetimes) == sorted([*ROWS, LifetimeRow(9, 1, 2, None)])
    assert sum(entry.rows for entry in manifest.segments if entry.table == "lifetimes") == 4
