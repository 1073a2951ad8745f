"""Claims: the native outbox hands events on as `engines.outbox` does, whatever the order of their ends; an event leaves once its
digests are there; memory is bounded, and what does not fit is counted exactly; a trace written from it is that of the rows."""

from __future__ import annotations

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opguard_core.trace.batch import ColumnBatch
from opguard_core.trace.schema import EventRow, SlotRow
from opguard_core.trace.writer import TraceWriter
from tests.support.traces import event, read_rank, slot

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]  # the first of these builds the parts


class Native:
    """A native outbox whose events are read as rows."""

    def __init__(self, parts, **options):
        self.box = parts.Outbox(parts.Texts(), **options)
        self.lost = []
        self._handed_on = []

    def handed_on(self):
        while (drained := self.box.drain(7)) is not None:
            batch = ColumnBatch.of(drained)
            self.lost += batch.lost
            slots = [] if batch.slots is None else [SlotRow(**row) for row in batch.slots.to_pylist()]
            for row in [] if batch.events is None else batch.events.to_pylist():
                self._handed_on.append((EventRow(**row), [mine for mine in slots if mine.seq == row["seq"]]))
            self.box.release(drained[2])
        return self._handed_on


class Python:
    """The outbox that the dispatch engine uses."""

    def __init__(self):
        from opguard_core.engines.outbox import Outbox

        self._handed_on = []
        self.box = Outbox(self)

    def emit(self, row, slots):
        self._handed_on.append((row, list(slots)))

    def handed_on(self):
        return self._handed_on


@pytest.fixture(params=["python", "native"])
def outbox(request, parts):
    return Python() if request.param == "python" else Native(parts)


def close(box, entry, **changes):
    box.close(entry, event(entry.seq, operator=entry.operator, **changes), [slot(entry.seq), slot(entry.seq, "in.0")])


def numbers(outbox):
    return [row.seq for row, _ in outbox.handed_on()]


def test_an_event_waits_for_all_before_it(outbox):
    first, second = outbox.box.open("a"), outbox.box.open("b")
    close(outbox.box, second)
    assert numbers(outbox) == []
    assert (outbox.box.oldest_open, outbox.box.next_seq) == (0, 2)
    close(outbox.box, first)
    assert [row.operator for row, _ in outbox.handed_on()] == ["a", "b"]
    assert outbox.box.oldest_open == 2


def test_settling_completes_what_waits_for_a_consumer(outbox):
    waiting, running, behind = (outbox.box.open() for _ in range(3))
    waiting.unblock = lambda: close(outbox.box, waiting)
    close(outbox.box, behind)
    outbox.box.settle()
    assert numbers(outbox) == [0]
    close(outbox.box, running)
    assert numbers(outbox) == [0, 1, 2]


def test_one_that_no_longer_waits_is_not_settled(outbox):
    waiting = outbox.box.open()
    waiting.unblock = lambda: pytest.fail("it was taken back")
    waiting.unblock = None
    outbox.box.settle()
    assert numbers(outbox) == []
    assert waiting.event is None


def test_too_many_waiting_events_complete_the_oldest(outbox, monkeypatch):
    waiting = outbox.box.open()

    def unblock():
        waiting.unblock = None
        close(outbox.box, waiting)

    waiting.unblock = unblock
    last = None
    for _ in range(1 << 14):
        last = outbox.box.open()
        outbox.box.close(last, event(last.seq), ())
    assert last.seq == 1 << 14
    assert len(outbox.handed_on()) == (1 << 14) + 1


def test_the_end_completes_what_still_runs_and_counts_who_comes_late(outbox):
    done, running, reading = (outbox.box.open(f"op{at}") for at in range(3))
    reading.slots = [slot(2), slot(2, "in.1", name="param:w")]
    close(outbox.box, done)
    left = outbox.box.finish(lambda entry: event(entry.seq, kind="gap", operator=entry.operator))
    assert [(entry.seq, bool(named)) for entry, named in left] == [(1, False), (2, True)]
    assert [(row.kind, row.operator, len(slots)) for row, slots in outbox.handed_on()] == [
        ("operator", "op0", 2),
        ("gap", "op1", 0),
        ("gap", "op2", 0),
    ]
    close(outbox.box, running)
    close(outbox.box, outbox.box.open())
    assert outbox.box.num_late == 2
    assert numbers(outbox) == [0, 1, 2]


@given(st.lists(st.one_of(st.just("open"), st.just("settle"), st.integers(0, 9)), max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_both_outboxes_hand_on_the_same_after_every_move(parts, moves):
    sides = (Python(), Native(parts))
    entries = ([], [])
    for move in moves:
        for side, known in zip(sides, entries, strict=True):
            if move == "open":
                known.append(side.box.open("a"))
                if len(known) % 3 == 0:
                    mine = known[-1]
                    mine.unblock = lambda side=side, mine=mine: close(side.box, mine)
            elif move == "settle":
                side.box.settle()
            elif move < len(known) and known[move].event is None:
                known[move].unblock = None
                close(side.box, known[move])
        assert sides[0].handed_on() == sides[1].handed_on()
        assert sides[0].box.oldest_open == sides[1].box.oldest_open


texts = st.sampled_from(["", "a", "übung", "lone \udc80 surrogate", "x" * 40])
numbers64 = st.integers(0, 2**63 - 1)


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_segments_hold_the_bytes_that_rows_give(parts, tmp_path_factory, data):
    program = []
    for seq in range(data.draw(st.integers(1, 20))):
        row = event(
            seq,
            args=data.draw(texts),
            node=data.draw(st.sampled_from(["", "MulBackward0"])),
            forward_seq=data.draw(st.none() | numbers64),
            stream=data.draw(st.none() | st.integers(-(2**62), 2**63 - 1)),
            user_frame=data.draw(st.none() | st.integers(0, 2**32 - 1)),
            rng_before=data.draw(st.none() | st.integers(0, 2**64 - 1)),
            grad_enabled=data.draw(st.booleans()),
        )
        slots = [
            slot(seq, f"in.{at}", name=data.draw(texts), version=data.draw(st.none() | numbers64), trivial=data.draw(st.booleans()))
            for at in range(data.draw(st.integers(0, 3)))
        ]
        program.append((row, slots))
    escaped = any("\udc80" in row.args or any("\udc80" in mine.name for mine in slots) for row, slots in program)
    folders = [tmp_path_factory.mktemp(name) for name in ("rows", "columns")]
    writers = [TraceWriter(folder / "rank-00000") for folder in folders]
    native = Native(parts)
    writers[1].pull_from(native.box)
    for row, slots in program:
        writers[0].emit(row, slots)
        native.box.close(native.box.open("a"), row, slots)
    for writer in writers:
        assert writer.close(ended="exit").drops.events == 0
    assert read_rank(folders[0]) == read_rank(folders[1])
    if not escaped:  # a row that had to be escaped is a batch of its own there
        files = [{path.name: path.read_bytes() for path in (folder / "rank-00000").glob("*.arrow")} for folder in folders]
        assert files[0] == files[1]


def test_a_value_that_does_not_fit_loses_its_event_alone(parts):
    native = Native(parts)
    bad = [
        (event(0, operator=None), []),
        (event(1, window=2**32), []),
        (event(7), []),
        (event(3), [slot(4)]),
        (event(4), [slot(4, dtype=None)]),
    ]
    for row, slots in bad:
        native.box.close(native.box.open(), row, slots)
    close(native.box, native.box.open())
    assert numbers(native) == [5]
    assert [(loss.first_seq, loss.last_seq, loss.reason) for loss in native.lost] == [(at, at, "encode") for at in range(5)]


def waiting(parts, native, count=1, **changes):
    """One event whose slots wait for a device; their cells."""
    entry = native.box.open("a")
    rows = [slot(entry.seq, f"out.{at}", **changes) for at in range(count)]
    return parts.close_waiting(native.box, entry, event(entry.seq), rows)


def test_an_event_leaves_once_its_digests_are_there(parts):
    native = Native(parts)
    first, second = waiting(parts, native, 2)
    (third,) = waiting(parts, native)
    close(native.box, native.box.open())
    third.keep(5, 500)
    first.keep(1, 100)
    assert numbers(native) == []
    assert native.box.oldest_open == 3
    second.keep(3, 300)
    events = native.handed_on()
    assert [row.t_device_ns for row, _ in events] == [300, 500, None]
    assert [[mine.mix64 for mine in slots] for _, slots in events[:2]] == [[1, 3], [5]]


def test_digests_that_are_lost_leave_an_unreadable_slot_and_are_told_once(parts):
    native = Native(parts)
    (named,) = waiting(parts, native, name="param:w")
    (plain,) = waiting(parts, native)
    named.lose()
    native.box.give_up()
    plain.keep(1, 1)  # too late
    assert [(slots[0].status, slots[0].mix64) for _, slots in native.handed_on()] == [("unreadable", 0)] * 2
    assert native.box.take_lost_slots() == [(0, True), (1, False)]
    assert native.box.take_lost_slots() == []


def test_the_end_waits_for_devices_and_tells_what_never_came(parts):
    native = Native(parts)
    (kept,), (missing,) = waiting(parts, native), waiting(parts, native, name="param:w")
    kept.keep(1, 1)
    assert not native.box.wait_for_digests(0.0)
    missing.keep(2, 2)  # too late
    assert native.box.take_lost_slots() == [(1, True)]
    assert [slots[0].status for _, slots in native.handed_on()] == ["probed", "unreadable"]
    assert native.box.take_lost_slots() == []
    assert native.box.wait_for_digests(0.0)


def test_promises_of_python_are_waited_for(parts):
    from opguard_core.fingerprint.digest import Digests
    from opguard_core.probe.kinds import Unreadable
    from opguard_core.probe.promise import Promise, Unchanged

    native, promises = Native(parts), [Promise(None, 16, at) for at in range(3)]
    entry = native.box.open("a")
    rows = [slot(0, f"out.{at}", mix64=promise, value64=0, bag64=0, xor32=0) for at, promise in enumerate(promises)]
    native.box.close(entry, event(0), rows)
    promises[0].keep(Digests(11, 12, 13, 14, True, 16), 700)
    promises[1].keep(Unreadable("gone"))
    assert numbers(native) == []
    promises[2].result = Unchanged()
    ((row, slots),) = native.handed_on()
    assert row.t_device_ns == 700
    assert [(mine.slot, mine.status, mine.mix64, mine.trivial) for mine in slots] == [
        ("out.0", "probed", 11, True),
        ("out.1", "unreadable", 0, False),
    ]


SMALL = 64 << 10


def test_dropping_counts_every_event_exactly(parts):
    native = Native(parts, budget_bytes=SMALL, wait_when_full=False)
    for _ in range(2000):
        close(native.box, native.box.open())
    assert native.box.held_bytes < 2 * SMALL + 2000 * 1000
    kept = numbers(native)
    lost = [seq for loss in native.lost for seq in range(loss.first_seq, loss.last_seq + 1)]
    assert {loss.reason for loss in native.lost} == {"buffer-full"}
    assert sorted(kept + lost) == list(range(2000))
    assert 0 < len(kept) < 2000
    assert native.box.held_bytes == 0
    close(native.box, native.box.open())
    assert numbers(native)[-1] == 2000


def test_a_full_outbox_makes_the_emitting_thread_wait_and_loses_nothing(parts):
    native = Native(parts, budget_bytes=SMALL)
    native.box.attach()
    emitting = threading.Thread(target=parts.emit_many, args=(native.box, 1, 5000, 2))
    emitting.start()
    most = 0
    while emitting.is_alive() or native.box.oldest_open < 5000:
        native.box.wait(0.05)
        most = max(most, native.box.held_bytes)
        native.handed_on()
    emitting.join()
    assert numbers(native) == list(range(5000))
    assert native.lost == []
    assert most <= SMALL


def test_what_cannot_leave_is_bounded_without_waiting(parts):
    native = Native(parts, budget_bytes=SMALL)
    native.box.attach()
    outer = native.box.open()  # runs on this very thread: nobody else could complete it
    parts.emit_many(native.box, 1, 5000, 2)
    assert native.box.held_bytes < 2 * SMALL + 5000 * 1000
    close(native.box, outer)
    kept = numbers(native)
    lost = [seq for loss in native.lost for seq in range(loss.first_seq, loss.last_seq + 1)]
    assert sorted(kept + lost) == list(range(5001))
    assert len(lost) > 4000


def test_threads_without_the_interpreter_lock_fill_one_trace(parts, tmp_path):
    native = Native(parts, budget_bytes=1 << 26)  # room for all: however busy the machine is, nothing has to be given up
    writer = TraceWriter(tmp_path / "rank-00000", segment_events=1000)
    writer.pull_from(native.box)
    parts.emit_many(native.box, 4, 2000, 2)
    native.box.finish(lambda entry: pytest.fail("all are complete"))
    manifest = writer.close(ended="exit")
    assert manifest.drops.events == 0
    rows = read_rank(tmp_path)
    assert [row.seq for row in rows.events] == list(range(8000))
    assert [[mine.mix64 for mine in slots] for slots in rows.slots] == [[seq, seq] for seq in range(8000)]
    assert native.box.held_bytes == 0


def test_after_the_writer_has_ended_nobody_waits(parts, tmp_path):
    native = Native(parts, budget_bytes=SMALL)
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.pull_from(native.box)
    writer.close(ended="exit")
    parts.emit_many(native.box, 1, 2000, 2)
    assert native.handed_on() == []
    assert {loss.reason for loss in native.lost} == {"writer-closed"}


def test_a_forked_child_finds_an_outbox_that_does_nothing(parts):
    native = Native(parts)
    held = native.box.open()
    native.box._lock = None  # as `RankContext.abandon_in_child` does
    close(native.box, held)
    close(native.box, native.box.open())
    assert numbers(native) == []
