"""Claims: memory is bounded; when it is full the emitting thread waits, or events are lost and counted exactly."""

from __future__ import annotations

import sys
import threading

import pytest

from opguard_core.trace import intake
from opguard_core.trace.commit import Committer
from opguard_core.trace.drops import complement, merge_ranges
from opguard_core.trace.reader import Run
from opguard_core.trace.schema import LifetimeRow
from opguard_core.trace.writer import TraceWriter
from tests.support.synthetic import GptShape, emit_side, gpt
from tests.support.traces import event, frame, read_rank, slot


@pytest.fixture
def gate(monkeypatch):
    """The writing thread stands still until this is set."""
    opened = threading.Event()
    original = Committer.add_events

    def add_events(self, rows):
        assert opened.wait(60)
        original(self, rows)

    monkeypatch.setattr(Committer, "add_events", add_events)
    yield opened
    opened.set()


def rows(count, first=0):
    return [(event(seq), [slot(seq)]) for seq in range(first, first + count)]


ROOM = 10 * (intake.EVENT_BYTES + intake.SLOT_BYTES)


def lost_of(manifest):
    return [seq for first, last in manifest.drops.ranges for seq in range(first, last + 1)]


def test_dropping_counts_every_event_exactly(tmp_path, gate):
    writer = TraceWriter(tmp_path / "rank-00000", buffer_bytes=ROOM, when_full="drop")
    for row, slots in rows(100):
        writer.emit(row, slots)
    gate.set()
    writer.flush()
    for row, slots in rows(5, first=100):
        writer.emit(row, slots)
    manifest = writer.close(ended="exit")
    trace = Run.open(tmp_path).ranks[0]
    kept = [row.seq for row in read_rank(tmp_path).events]
    assert kept == [*range(10), *range(100, 105)]
    assert sorted(kept + lost_of(manifest)) == list(range(105))
    assert manifest.drops.events == 90
    assert manifest.drops.reasons == {"buffer-full": 90}
    assert manifest.drops.ranges == trace.dropped == ((10, 99),)
    (window,) = trace.iter_windows()
    assert window.dropped == ((10, 99),)
    assert manifest.complete
    assert trace.torn is None


def test_once_dropping_it_drops_until_half_is_free(tmp_path):
    queue = intake.Intake(ROOM, "drop")
    ledger = queue.ledger
    for row, slots in rows(12):
        queue.put(row, slots)
    assert ledger.total().ranges == ((10, 11),)
    queue.release(ROOM // 10)
    queue.put(*rows(1, first=12)[0])
    assert ledger.total().ranges == ((10, 12),)
    queue.release(ROOM // 2)
    queue.put(*rows(1, first=13)[0])
    assert [row.seq for row, _ in queue.take(0).events] == [*range(10), 13]


def test_waiting_loses_nothing(tmp_path, gate):
    writer = TraceWriter(tmp_path / "rank-00000", buffer_bytes=ROOM)
    emitted = []

    def emit():
        for row, slots in rows(200):
            writer.emit(row, slots)
            emitted.append(row.seq)

    thread = threading.Thread(target=emit)
    thread.start()
    while not writer._intake._num_waiting:
        thread.join(0.001)
    assert len(emitted) == 10
    gate.set()
    thread.join()
    assert writer.close(ended="exit").drops.events == 0
    assert [row.seq for row in read_rank(tmp_path).events] == list(range(200))


def test_an_event_larger_than_the_whole_budget_is_let_in(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000", buffer_bytes=1)
    for seq in range(3):
        writer.emit(event(seq), [slot(seq, f"in.{k}") for k in range(50)])
    assert writer.close(ended="exit").drops.events == 0
    assert [len(slots) for slots in read_rank(tmp_path).slots] == [50, 50, 50]


def test_closing_frees_a_waiting_thread_and_counts_its_event(tmp_path, gate):
    writer = TraceWriter(tmp_path / "rank-00000", buffer_bytes=ROOM)
    thread = threading.Thread(target=lambda: [writer.emit(row, slots) for row, slots in rows(11)])
    thread.start()
    while not writer._intake._num_waiting:
        thread.join(0.001)
    closer = threading.Thread(target=lambda: writer.close(ended="exit"))
    closer.start()
    thread.join()
    gate.set()
    closer.join()
    manifest = Run.open(tmp_path).ranks[0].manifest
    assert manifest.drops.ranges == ((10, 10),)
    assert manifest.drops.reasons == {"writer-closed": 1}


def test_numbers_that_never_come_and_numbers_that_come_again(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000")
    for seq in (0, 1, 5, 3, 5, 6):
        writer.emit(event(seq), [slot(seq)])
    manifest = writer.close(ended="exit")
    assert [row.seq for row in read_rank(tmp_path).events] == [0, 1, 5, 6]
    assert manifest.drops.ranges == ((2, 4),)
    assert manifest.drops.reasons == {"not-emitted": 3}
    assert manifest.drops.other == {"out-of-order": 2}


def test_a_bad_value_takes_only_its_own_event_with_it(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000")
    bad = {
        3: (event(3, collective_clock=-1), [slot(3)]),
        7: (event(7), [slot(7, nbytes="many")]),
        8: (event(8), [slot(9)]),
        11: (event(11, module=None), []),
    }
    for seq in range(20):
        writer.emit(*bad.get(seq, (event(seq), [slot(seq)])))
    manifest = writer.close(ended="exit")
    assert [row.seq for row in read_rank(tmp_path).events] == [seq for seq in range(20) if seq not in bad]
    assert sorted(lost_of(manifest)) == sorted(bad)
    assert manifest.drops.reasons == {"encode": 4}
    assert any("seq of another event" in text for text in manifest.drops.errors)
    assert any("module" in text for text in manifest.drops.errors)


def test_interned_rows_that_do_not_fit_keep_their_place(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.frame(frame(0))
    writer.frame(frame(1, line=-1))
    writer.frame(frame(2))
    writer.stack(0, [0])
    writer.stack(1, ["no"])
    writer.stack(2, [2])
    writer.lifetime(LifetimeRow(0, 8, 0, None))
    writer.lifetime(LifetimeRow(1, None, 0, None))
    manifest = writer.close(ended="exit")
    found = read_rank(tmp_path)
    assert [row.line for row in found.frames] == [1, 0, 3]
    assert found.stacks == [[0], [], [2]]
    assert found.lifetimes == [LifetimeRow(0, 8, 0, None)]
    assert manifest.drops.other == {"frames": 1, "stacks": 1, "lifetimes": 1}


def test_only_lifetimes_that_do_not_fit(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.lifetime(LifetimeRow(-1, 0, 0, None))
    assert writer.close(ended="exit").drops.other == {"lifetimes": 1}
    assert read_rank(tmp_path).lifetimes == []


def test_texts_that_are_not_utf8_are_stored_escaped(tmp_path):
    name = b"caf\xe9.py".decode("utf-8", "surrogateescape")
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.frame(frame(0))
    writer.frame(frame(1, file=name))
    writer.emit(event(0), [])
    writer.emit(event(1, args=f"('{name}')"), [slot(1, name=name)])
    manifest = writer.close(ended="exit")
    found = read_rank(tmp_path)
    assert manifest.drops.events == 0
    assert manifest.drops.other == {}
    assert found.frames[1].file == "caf\\udce9.py"
    assert found.events[1].args == "('caf\\udce9.py')"
    assert found.slots[1][0].name == "caf\\udce9.py"


def test_losses_are_in_the_index_too(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.emit(event(0), [])
    writer.flush()
    writer.emit(event(4), [])
    writer.flush()
    trace = Run.open(tmp_path).ranks[0]
    assert trace.dropped == ((1, 3),)
    assert [row.seq for row in read_rank(tmp_path).events] == [0, 4]
    writer.close(ended="exit")


def test_the_estimate_of_queued_memory_is_not_too_low():
    class Sink:
        def __init__(self):
            self.rows = []

        def emit(self, row, slots):
            self.rows.append((row, slots))

        def frame(self, row): ...

        def stack(self, stack, frames): ...

        def lifetime(self, row): ...

        def source(self, digest, text): ...

    sink = Sink()
    emit_side(gpt(GptShape(layers=2, steps=2)), sink, mode="verify")
    seen, real, estimate = set(), 0, 0
    for row, slots in sink.rows:
        estimate += intake.EVENT_BYTES + len(row.args) + intake.SLOT_BYTES * len(slots)
        for thing in (row, *row, slots, *slots, *(value for one in slots for value in one)):
            if id(thing) not in seen:
                seen.add(id(thing))
                real += sys.getsizeof(thing)
    assert real <= estimate <= 3 * real


def test_ranges():
    assert merge_ranges([(5, 6), (0, 1), (2, 3), (6, 9)]) == [(0, 3), (5, 9)]
    assert complement([(5, 6), (0, 1)], 9) == [(2, 4), (7, 8)]
    assert complement([], 0) == []
    assert complement([(0, 8)], 9) == []
