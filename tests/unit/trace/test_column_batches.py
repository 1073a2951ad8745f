"""Claims: a trace written from columns is the trace that the same rows give, byte for byte; losses are counted exactly; what a flush
or the end waits for, and what a kill can lose, stays as it is for rows."""

from __future__ import annotations

import shutil
import threading

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_core.trace import commit, flush
from opguard_core.trace.batch import ColumnBatch
from opguard_core.trace.reader import Run
from opguard_core.trace.writer import TraceWriter
from tests.support.column_source import RowSource
from tests.support.synthetic import GptShape, emit_side, gpt
from tests.support.traces import event, frame, read_rank, slot

SHAPE = GptShape(layers=1, width=8, tokens=4, vocabulary=16, steps=4)


def write(folder, events, source=None, **options):
    """One trace of (event, slots) pairs, by rows or by columns; the closed writer's manifest."""
    writer = TraceWriter(folder / "rank-00000", **options)
    if source is not None:
        writer.pull_from(source)
    writer.frame(frame(0))
    writer.stack(0, [0])
    for row, slots in events:
        (writer.emit if source is None else source.put)(row, slots)
    return writer.close(ended="exit")


def files(folder):
    return {path.name: path.read_bytes() for path in (folder / "rank-00000").glob("*.arrow")}


class Heard:
    """A sink that remembers events and nothing else."""

    def __init__(self):
        self.events = []

    def emit(self, row, slots):
        self.events.append((row, list(slots)))

    def ignored(self, *_):
        pass

    frame = stack = lifetime = source = ignored


def gpt_rows():
    heard = Heard()
    emit_side(gpt(SHAPE), heard)
    return heard.events


texts = st.sampled_from(["", "a", "übung", "x" * 40])
numbers = st.integers(0, 2**63 - 1)


@st.composite
def programs(draw):
    made = []
    for seq in range(draw(st.integers(1, 30))):
        changes = {
            "args": draw(texts),
            "module": draw(texts),
            "forward_seq": draw(st.none() | numbers),
            "stack": draw(st.none() | st.integers(0, 2**32 - 1)),
            "t_device_ns": draw(st.none() | numbers),
            "rng_before": draw(st.none() | st.integers(0, 2**64 - 1)),
            "grad_enabled": draw(st.booleans()),
        }
        slots = [
            slot(seq, f"in.{at}", name=draw(texts), version=draw(st.none() | numbers), trivial=draw(st.booleans()))
            for at in range(draw(st.integers(0, 3)))
        ]
        made.append((event(seq, **changes), slots))
    return made


@given(programs())
@settings(max_examples=25, deadline=None)
def test_segments_of_columns_are_those_of_rows(tmp_path_factory, program):
    by_rows, by_columns = tmp_path_factory.mktemp("rows"), tmp_path_factory.mktemp("columns")
    write(by_rows, program)
    write(by_columns, program, RowSource())
    assert files(by_rows) == files(by_columns)


def test_a_long_trace_cut_into_segments_reads_the_same(tmp_path):
    program = gpt_rows()
    write(tmp_path / "rows", program, segment_events=50)
    write(tmp_path / "columns", program, RowSource(), segment_events=50)
    assert read_rank(tmp_path / "columns") == read_rank(tmp_path / "rows")


def test_losses_inside_are_recorded_with_their_reason(tmp_path):
    source = RowSource()
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.pull_from(source)
    for seq in range(10):
        if seq in (3, 4, 9):
            source.lose(seq, "buffer-full")
        else:
            source.put(event(seq), [slot(seq)])
    manifest = writer.close(ended="exit")
    assert manifest.drops.ranges == ((3, 4), (9, 9))
    assert manifest.drops.reasons == {"buffer-full": 3}
    assert [row.seq for row in read_rank(tmp_path).events] == [0, 1, 2, 5, 6, 7, 8]


def test_columns_that_cannot_be_taken_over_are_counted(tmp_path, monkeypatch):
    def refuse(drained):
        raise pa.ArrowInvalid("no")

    monkeypatch.setattr(commit.ColumnBatch, "of", refuse)
    source = RowSource()
    for seq in range(4):
        source.put(event(seq), [])
    manifest = write(tmp_path, [], source)
    assert manifest.drops.ranges == ((0, 3),)
    assert manifest.drops.reasons == {"encode": 4}


def test_what_was_flushed_survives_a_kill(tmp_path):
    source = RowSource()
    writer = TraceWriter(tmp_path / "run" / "rank-00000")
    writer.pull_from(source)
    writer.frame(frame(0))
    writer.stack(0, [0])
    for seq in range(7):
        source.put(event(seq, stack=0), [slot(seq)])
    writer.flush()
    shutil.copytree(tmp_path / "run", tmp_path / "killed")  # what is on disk when the process dies here
    writer.close(ended="exit")
    assert [row.seq for row in read_rank(tmp_path / "killed").events] == list(range(7))
    assert read_rank(tmp_path / "killed").frames == [frame(0)]


def test_a_flush_waits_for_digests_that_are_on_their_way(tmp_path):
    source = RowSource()
    source.late = 2
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.pull_from(source)
    for seq in range(4):
        source.put(event(seq), [])
    flushed = threading.Event()
    waiting = threading.Thread(target=lambda: (writer.flush(), flushed.set()))
    waiting.start()
    assert not flushed.is_set()
    source.late = None
    waiting.join(60)
    assert flushed.is_set()
    assert writer.close(ended="exit").drops.events == 0


def test_the_end_gives_a_silent_device_up(tmp_path, monkeypatch):
    monkeypatch.setattr(flush, "DEVICE_PATIENCE_S", 0.02)
    source = RowSource()
    source.late = 0
    manifest = write(tmp_path, [(event(0), []), (event(1), [])], source)
    assert source.gave_up
    assert source.was_shut
    assert manifest.drops.events == 0
    assert len(read_rank(tmp_path).events) == 2


def test_everything_held_is_given_back(tmp_path):
    source = RowSource()
    write(tmp_path, [(event(seq), [slot(seq)]) for seq in range(100)], source)
    assert source.held_bytes == 0


def test_rows_beside_a_source_are_refused_and_counted(tmp_path):
    source = RowSource()
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.pull_from(source)
    writer.emit(event(0), [])
    source.put(event(0, operator="aten.mul.Tensor"), [])
    manifest = writer.close(ended="exit")
    assert manifest.drops.other == {"out-of-order": 1}
    assert [row.operator for row in read_rank(tmp_path).events] == ["aten.mul.Tensor"]


def test_a_source_met_after_the_end_is_shut(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00000")
    writer.close(ended="exit")
    source = RowSource()
    writer.pull_from(source)
    assert source.was_shut


def test_a_batch_copies_nothing_and_is_valid():
    source = RowSource()
    source.put(event(0), [slot(0), slot(0, "in.0")])
    batch = ColumnBatch.of(source.drain(10))
    batch.events.validate(full=True)
    batch.slots.validate(full=True)
    assert (batch.first_seq, batch.last_seq, batch.slots.num_rows) == (0, 0, 2)


def test_windows_are_found_again(tmp_path):
    program = gpt_rows()
    write(tmp_path, program, RowSource())
    windows = [window.window for window in Run.open(tmp_path).ranks[0].iter_windows()]
    assert windows == sorted({row.window for row, _ in program})
