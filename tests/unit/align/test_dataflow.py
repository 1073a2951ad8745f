"""Producers and consumers by storage and byte extent, inside a window and across windows."""

import numpy as np

from opguard_core.align import dataflow
from opguard_core.align.dataflow import Dataflow, subtract
from opguard_core.align.ledger import Ledger, Lifetimes, Write
from opguard_core.align.timeline import REFERENCE, SUSPECT, Row
from opguard_core.trace.lookups import LifetimeTable


def events_of(flow, rows):
    return [int(flow.window.event[row]) for row in rows]


def last_read(flow):
    return int(np.flatnonzero(flow.window.read)[-1])


def test_subtract_cuts_spans():
    assert subtract([(0, 10)], 3, 5) == [(0, 3), (5, 10)]
    assert subtract([(0, 10)], 0, 10) == []
    assert subtract([(0, 4), (6, 8)], 3, 7) == [(0, 3), (7, 8)]


def test_a_reader_finds_its_writer(window):
    def write(s):
        x = s.op("aten.randn.default", [], (4,), 1)
        s.op("aten.neg.default", [x], (4,))

    flow = Dataflow(window(write))
    assert flow.producers(last_read(flow)) == ([0], [])
    assert flow.writer[last_read(flow)] == 0
    assert events_of(flow, flow.consumers(0)) == [1]


def test_a_reader_of_two_writes_finds_both_newest_first(window):
    def write(s):
        x = s.op("aten.zeros.default", [], (8,), 1)
        s.op("aten.fill_.Scalar", [x.view((4,), 1, 0, 16)], (4,), into=x.view((4,), 2, 0, 16))
        s.op("aten.neg.default", [x.holding(3)], (8,))

    flow = Dataflow(window(write))
    producers, missing = flow.producers(last_read(flow))
    assert events_of(flow, producers) == [1, 0]
    assert missing == []


def test_an_overwritten_write_is_no_producer_and_has_no_consumer(window):
    def write(s):
        x = s.op("aten.zeros.default", [], (8,), 1)
        s.op("aten.fill_.Scalar", [x], (8,), into=x.holding(2))
        s.op("aten.neg.default", [x.holding(2)], (8,))

    flow = Dataflow(window(write))
    assert events_of(flow, flow.producers(last_read(flow))[0]) == [1]
    assert list(flow.consumers(0)) == []


def test_bytes_nobody_wrote_are_missing(window):
    def write(s):
        x = s.given((8,), 1)
        s.op("aten.fill_.Scalar", [x.view((4,), 1, 0, 16)], (4,), into=x.view((4,), 2, 0, 16))
        s.op("aten.neg.default", [x.holding(3)], (8,))

    flow = Dataflow(window(write))
    producers, missing = flow.producers(last_read(flow))
    assert events_of(flow, producers) == [0]
    assert missing == [(16, 32)]


def test_a_strided_write_covers_nothing_fully(window):
    def write(s):
        x = s.op("aten.zeros.default", [], (8,), 1)
        s.op("aten.fill_.Scalar", [], (4,), into=x.view((4,), 2, 0, 28))  # every other element
        s.op("aten.neg.default", [x.holding(3)], (8,))

    flow = Dataflow(window(write))
    assert events_of(flow, flow.producers(last_read(flow))[0]) == [1, 0]
    assert events_of(flow, flow.consumers(0)) == [2]


def test_reads_of_other_bytes_are_no_consumers(window):
    def write(s):
        x = s.op("aten.zeros.default", [], (8,), 1)
        s.op("aten.fill_.Scalar", [x], (4,), into=x.view((4,), 2, 0, 16))
        s.op("aten.neg.default", [x.view((4,), 1, 16, 32)], (4,))

    flow = Dataflow(window(write))
    written = int(flow.window.outputs(1)[0])
    assert list(flow.consumers(written)) == []


def test_an_empty_slice_is_traced_to_whoever_wrote_the_storage(window):
    def write(s):
        x = s.op("aten.randn.default", [], (8,), 1)
        s.op("aten.neg.default", [x.view((0,), 1, 16, 16)], (0,))
        s.op("aten.neg.default", [s.given((0,), 1)], (0,))

    flow = Dataflow(window(write))
    rows = np.flatnonzero(flow.window.read)
    assert events_of(flow, flow.producers(int(rows[0]))[0]) == [0]
    assert flow.producers(int(rows[1])) == ([], [(0, 0)])


def test_an_update_in_place_does_not_read_itself(window):
    def write(s):
        x = s.op("aten.zeros.default", [], (4,), 1)
        s.op("aten.add_.Tensor", [x, x], (4,), into=x)

    flow = Dataflow(window(write))
    assert events_of(flow, flow.consumers(int(flow.window.outputs(1)[0]))) == []
    assert events_of(flow, flow.producers(int(flow.window.reads(1)[0]))[0]) == [0]


def test_walks_over_one_storage_are_bounded(window, monkeypatch):
    monkeypatch.setattr(dataflow, "MAX_WRITES", 2)
    monkeypatch.setattr(dataflow, "MAX_ACCESSES", 2)

    def write(s):
        x = s.op("aten.zeros.default", [], (8,), 1)
        for at in range(6):
            s.op("aten.fill_.Scalar", [], (2,), into=x.view((2,), 2 + at, at * 4, at * 4 + 8))
        s.op("aten.neg.default", [x.holding(9)], (8,))

    flow = Dataflow(window(write))
    assert len(flow.producers(last_read(flow))[0]) == 2
    assert list(flow.consumers(0)) == []
    assert len(flow.last_writes(0)) == 2


def test_the_writes_that_can_still_be_seen(window):
    def write(s):
        x = s.op("aten.zeros.default", [], (8,), 1)
        s.op("aten.fill_.Scalar", [], (8,), into=x.holding(2))
        s.op("aten.fill_.Scalar", [], (2,), into=x.view((2,), 3, 0, 8))

    flow = Dataflow(window(write))
    assert events_of(flow, flow.last_writes(0)) == [2, 1]
    assert flow.last_writes(77) == []


def ledger(*rows):
    """Lifetimes from (storage, born, dead) rows."""
    table = LifetimeTable([])
    table.columns = {
        "storage": np.array([row[0] for row in rows], np.uint32),
        "born_seq": np.array([row[1] for row in rows], np.uint64),
        "dead_seq": np.array([row[2] for row in rows], np.int64),
    }
    return Ledger(Lifetimes(table))


def test_a_ledger_keeps_what_outlives_its_window(windows):
    def write(s):
        kept, gone = s.op("aten.zeros.default", [], (8,), 1), s.op("aten.ones.default", [], (8,), 2)
        s.op("aten.fill_.Scalar", [], (2,), into=kept.view((2,), 3, 0, 8))
        s.free(gone)
        s.update()
        s.op("aten.neg.default", [kept.holding(4)], (8,))

    first, _ = windows(write)
    book = ledger((0, 0, -1), (1, 1, 3))
    book.close(Dataflow(first))
    found, missing = book.writes(0, [(0, 32)], 1)
    assert [(entry.lo, entry.hi) for entry in found] == [(0, 8), (0, 32)]
    assert missing == []
    assert book.writes(1, [(0, 32)], 1) == ([], [(0, 32)])
    assert book.writes(0, [(0, 32)], 0) == ([], [(0, 32)])
    assert book.writes(0, [(0, 0)], 1) == ([Write(0, 2, 0, 8, True)], [])
    assert book.writes(5, [(0, 0)], 1) == ([], [(0, 0)])


def test_a_ledger_says_whether_a_write_still_shows(windows):
    def write(s):
        x, y = s.op("aten.zeros.default", [], (8,), 1), s.op("aten.ones.default", [], (8,), 2)
        s.update()
        s.op("aten.fill_.Scalar", [], (8,), into=x.holding(3))
        s.free(y)

    first, second = windows(write)
    book = ledger((0, 0, -1), (1, 1, 4))
    for entry in (first, second):
        book.close(Dataflow(entry))
    assert not book.shows(0, 0, 0)  # overwritten
    assert book.shows(0, 1, 0)
    assert not book.shows(1, 0, 1)  # freed
    assert not book.shows(0, 7, 0)


def test_old_windows_are_joined_and_each_storage_keeps_its_latest_writes(windows, monkeypatch):
    from opguard_core.align import ledger as module

    monkeypatch.setattr(module, "MAX_PAGES", 4)
    monkeypatch.setattr(module, "MAX_RECORDS", 2)

    def write(s):
        x, once = s.given((8,), 0), s.op("aten.ones.default", [], (8,), 2)
        for step in range(12):
            s.op("aten.fill_.Scalar", [], (8,), into=x.holding(step))
            s.update()
        s.op("aten.neg.default", [once], (8,))

    book = ledger((0, 0, -1), (1, 0, -1))
    for entry in windows(write):
        book.close(Dataflow(entry))
    assert len(book._pages) <= 5
    assert book.writes(0, [(0, 32)], 12)[0][0].window == 11
    assert book.writes(1, [(0, 32)], 12)[0][0].window == 0


def test_lifetimes_of_unknown_storages_are_open_ended():
    empty, known = ledger().lifetimes, ledger((3, 10, 20), (5, 11, -1)).lifetimes
    asked = np.array([3, 5, 9])
    assert empty.born(asked).tolist() == [0, 0, 0]
    assert (empty.dead(asked) > 1 << 60).all()
    assert known.born(asked).tolist() == [10, 11, 0]
    assert known.dead(asked)[0] == 20
    assert (known.dead(asked)[1:] > 1 << 60).all()


def test_a_timeline_follows_a_read_into_earlier_windows(timeline):
    def write(s):
        x = s.op("aten.randn.default", [], (8,), 1)
        for _ in range(6):  # more windows than are kept in memory
            s.update()
            s.op("aten.sin.default", [s.given((4,), 5)], (4,))
        s.op("aten.neg.default", [x], (8,))

    line = timeline(write, write)
    steps = list(line.steps())
    assert [step.number for step in steps] == list(range(7))
    last = line.flow(SUSPECT, 6)
    found, missing = line.producers(Row(SUSPECT, 6, last_read(last)))
    assert [(row.window, row.row) for row in found] == [(0, 0)]
    assert not missing
    assert line.flow(REFERENCE, 0).window.number == 0  # read and aligned again


def test_a_timeline_hands_out_windows_that_only_one_side_has(timeline):
    def write(steps):
        def build(s):
            x = s.op("aten.randn.default", [], (8,), 1)
            for _ in range(steps):
                s.update()
                x = s.op("aten.neg.default", [x], (8,))

        return build

    line = timeline(write(1), write(3))
    steps = list(line.steps())
    assert [step.aligned is not None for step in steps] == [True, True, False, False]
    assert not line.is_common(3)
    rows, _ = line.producers(Row(SUSPECT, 3, 0))
    assert rows[0].window == 2


def test_slots_without_a_storage_have_no_producer(timeline):
    def write(s):
        x = s.given((8,), 1)
        row = s._slot("in.0", "in", x)._replace(storage=None)
        s.event("aten.neg.default", [row, s._slot("out.0", "out", s.given((8,), 2))])

    line = timeline(write, write)
    list(line.steps())
    assert line.producers(Row(REFERENCE, 0, 0)) == ([], True)
