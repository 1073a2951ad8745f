"""Claims: what is emitted is what is read, row for row and column for column, across windows and segments."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from opguard_core.engines.protocol import EventSink
from opguard_core.engines.replay import ReplayEngine
from opguard_core.errors import CaptureError, CorruptSegment, TraceFormatError
from opguard_core.trace import sources
from opguard_core.trace.manifest import read_rank_manifest
from opguard_core.trace.reader import RankTrace, Run
from opguard_core.trace.schema import LifetimeRow
from opguard_core.trace.sources import source_digest
from opguard_core.trace.writer import TraceWriter
from tests.support.synthetic import GptShape, Side, emit_side, gpt, write_run
from tests.support.traces import event, frame, read_rank, rows_of, slot


def _write(folder, rows, **options):
    writer = TraceWriter(folder / "rank-00000", **options)
    for row, slots in rows:
        writer.emit(row, slots)
    return writer.close(ended="exit")


def test_every_value_of_every_table_comes_back(tmp_path):
    rows = [
        (
            event(
                0, t_device_ns=5, stream=7, forward_seq=0, stack=0, user_frame=0, library_frame=1, rng_before=2**64 - 1, rng_stream="cpu"
            ),
            [],
        ),
        (event(1, args="(0x1.8p+0, None)", module="blocks.0", grad_enabled=False, t_host_ns=-5), [slot(1, "in.0"), slot(1, "out.0")]),
        (event(2, thread="Thread:work", thread_index=1), [slot(2, "mut.0", storage=None, version=None, mix64=2**64 - 1, name="w")]),
    ]
    lifetimes = [LifetimeRow(3, 8, 0, 2), LifetimeRow(1, 16, 1, None)]
    writer = TraceWriter(tmp_path / "rank-00000")
    assert isinstance(writer, EventSink)
    writer.frame(frame(0, file="köln.py", text="größe"))
    writer.frame(frame(1, category="torch"))
    writer.stack(0, (0, 1))
    writer.stack(1, ())
    for row, slots in rows:
        writer.emit(row, slots)
    for lifetime in lifetimes:
        writer.lifetime(lifetime)
    writer.close(ended="exit")
    found = read_rank(tmp_path)
    assert found.events == [row for row, _ in rows]
    assert found.slots == [slots for _, slots in rows]
    assert found.frames == [frame(0, file="köln.py", text="größe"), frame(1, category="torch")]
    assert found.stacks == [[0, 1], []]
    with pytest.raises(IndexError, match="no stack 2"):
        Run.open(tmp_path).ranks[0].stacks[2]
    assert found.lifetimes == sorted(lifetimes)
    assert Run.open(tmp_path).ranks[0].lifetimes.get(3) == lifetimes[0]


def test_columns_are_numpy_with_rank_wide_codes(tmp_path):
    _write(tmp_path, [(event(seq, window=seq, operator=f"op{seq % 2}"), [slot(seq)]) for seq in range(4)], segment_events=1)
    trace = Run.open(tmp_path).ranks[0]
    windows = list(trace.iter_windows())
    codes = [int(window.events["operator"][0]) for window in windows]
    assert codes == [0, 1, 0, 1]
    assert list(trace.strings["operator"]) == ["op0", "op1"]
    assert trace.strings["operator"].code("op1") == 1
    assert trace.strings["operator"].code("absent") == -1
    assert windows[0].events["forward_seq"].tolist() == [-1]
    assert windows[0].events["rng_before_known"].tolist() == [False]
    assert windows[0].slots["mix64"].dtype == np.uint64
    assert windows[0].events["grad_enabled"].dtype == np.bool_
    assert all(window.strings is trace.strings for window in windows)


@pytest.mark.parametrize("segment_events", [1, 3, 1000])
def test_windows_do_not_depend_on_where_segments_end(tmp_path, segment_events):
    numbers = [0, 0, 0, 1, 2, 2, 5, 5, 5, 5]
    rows = [(event(seq, window=number), [slot(seq, f"in.{k}") for k in range(seq % 3)]) for seq, number in enumerate(numbers)]
    _write(tmp_path, rows, segment_events=segment_events)
    windows = list(Run.open(tmp_path).ranks[0].iter_windows())
    assert [(window.window, window.events["seq"].tolist()) for window in windows] == [
        (0, [0, 1, 2]),
        (1, [3]),
        (2, [4, 5]),
        (5, [6, 7, 8, 9]),
    ]
    assert [window.slots_of(index) for window in windows for index in range(len(window))] == [slots for _, slots in rows]
    assert [window.num_slots for window in windows] == [3, 0, 3, 3]
    assert all(window.whole and not window.dropped for window in windows)


def test_a_straggler_keeps_its_number_and_stays_where_it_was_recorded(tmp_path):
    _write(tmp_path, [(event(seq, window=number), []) for seq, number in enumerate([0, 1, 0, 1])])
    windows = list(Run.open(tmp_path).ranks[0].iter_windows())
    assert [window.window for window in windows] == [0, 1]
    assert windows[1].events["window"].tolist() == [1, 0, 1]


def test_a_window_finds_events_by_number(tmp_path):
    _write(tmp_path, [(event(seq), [slot(seq)]) for seq in range(5)])
    trace = Run.open(tmp_path).ranks[0]
    (window,) = trace.iter_windows()
    assert window.index_of(3) == 3
    assert window.index_of(5) is None
    assert trace.event_at(4) == (event(4), [slot(4)])
    assert trace.event_at(5) is None


@pytest.mark.parametrize("segment_events", [1, 2, 5, 1000])
def test_a_window_by_number_is_the_one_from_reading_in_order(tmp_path, segment_events):
    numbers = [1, 1, 1, 2, 2, 4, 2, 4, 4, 7, 7, 7, 7, 8]
    lost = {2, 6, 9, 10}
    rows = [(event(seq, window=number), [slot(seq)]) for seq, number in enumerate(numbers) if seq not in lost]
    _write(tmp_path, rows, segment_events=segment_events)
    expected = {table.window: table for table in Run.open(tmp_path).ranks[0].iter_windows()}
    for number in range(10):
        found = Run.open(tmp_path).ranks[0].window(number)
        if number not in expected:
            assert found is None
            continue
        assert [found.event(index) for index in range(len(found))] == [
            expected[number].event(index) for index in range(len(expected[number]))
        ]
        assert [found.slots_of(index) for index in range(len(found))] == [
            expected[number].slots_of(index) for index in range(len(expected[number]))
        ]
        assert (found.dropped, found.whole) == (expected[number].dropped, expected[number].whole)


def test_a_window_by_number_does_not_read_the_whole_trace(tmp_path, monkeypatch):
    _write(tmp_path, [(event(seq, window=seq), [slot(seq)]) for seq in range(64)], segment_events=1)
    trace = Run.open(tmp_path).ranks[0]
    reads = []
    original = RankTrace._read
    monkeypatch.setattr(RankTrace, "_read", lambda self, entry: reads.append(entry.file) or original(self, entry))
    assert trace.window(40).event(0) == event(40, window=40)
    assert len(reads) < 15
    assert Run.open(write_run(tmp_path / "empty", gpt(GptShape(layers=1, steps=1)), stop=0)).ranks[0].window(0) is None


def test_reading_twice_gives_the_same(tmp_path):
    trace = Run.open(write_run(tmp_path, gpt(GptShape(layers=1, steps=2)))).ranks[0]
    assert rows_of(trace) == rows_of(trace)


def test_one_segment_is_in_memory_at_a_time(tmp_path, monkeypatch):
    _write(tmp_path, [(event(seq, window=seq), [slot(seq)]) for seq in range(6)], segment_events=1)
    trace = Run.open(tmp_path).ranks[0]
    reads = []
    original = RankTrace._read
    monkeypatch.setattr(RankTrace, "_read", lambda self, entry: reads.append(entry.file) or original(self, entry))
    windows = trace.iter_windows()
    next(windows)
    assert len(reads) == 4  # events and slots of the first window, and of the group that showed its end


def test_a_trace_without_events_is_whole_and_empty(tmp_path):
    manifest = _write(tmp_path, [])
    trace = Run.open(tmp_path).ranks[0]
    assert manifest.complete
    assert trace.torn is None
    assert list(trace.iter_windows()) == []
    assert (len(trace.frames), len(trace.stacks), len(trace.lifetimes)) == (0, 0, 0)
    assert trace.lifetimes.get(0) is None


def test_manifests_say_what_was_written(tmp_path):
    writer = TraceWriter(tmp_path / "rank-00003", rank=3, world_size=4, mode="verify", contract={"torch": "2.13"})
    assert read_rank_manifest(tmp_path / "rank-00003").contract == {"torch": "2.13"}
    writer.emit(event(0), [slot(0)])
    report = writer.close(ended="exception", engines={"dispatch": {"active": True}}, coverage={"sparse": 2}, extra={"note": 1})
    manifest = read_rank_manifest(tmp_path / "rank-00003")
    assert manifest == report
    assert (manifest.rank, manifest.world_size, manifest.mode, manifest.ended, manifest.complete) == (3, 4, "verify", "exception", True)
    assert manifest.engines == {"dispatch": {"active": True}}
    assert manifest.coverage == {"sparse": 2}
    assert manifest.extra == {"note": 1}
    assert [(entry.table, entry.rows, entry.first_seq, entry.last_seq) for entry in manifest.segments] == [
        ("slots", 1, 0, 0),
        ("events", 1, 0, 0),
    ]


def test_sources_are_stored_once_and_checked(tmp_path):
    text = "x = 1\r\n# é\n"
    for rank in (0, 1):
        writer = TraceWriter(tmp_path / f"rank-{rank:05d}", rank=rank)
        writer.source(source_digest(text), text)
        writer.source("0" * 64, "not that text")
        drops = writer.close(ended="exit").drops
        assert drops.other == {"source": 1}
    run = Run.open(tmp_path)
    assert run.source(source_digest(text)) == text
    stored = tmp_path / "sources" / f"{source_digest(text)}.py.gz"
    assert [path.name for path in (tmp_path / "sources").iterdir()] == [stored.name]
    stored.write_bytes(gzip.compress(b"x = 2\n"))
    with pytest.raises(CorruptSegment, match="changed after it was stored"):
        run.source(source_digest(text))
    for damaged in (b"", b"x = 1", gzip.compress(b"x")[:-3], gzip.compress(b"x") + b"more"):
        stored.write_bytes(damaged)
        with pytest.raises(CorruptSegment, match="Source not readable"):
            run.source(source_digest(text))
    stored.unlink()
    stored.with_suffix("").write_bytes(text.encode())  # as traces had it before texts were compressed
    assert run.source(source_digest(text)) == text
    for absent in ("0" * 64, "../manifest", ""):
        with pytest.raises(TraceFormatError):
            run.source(absent)


def test_a_source_that_inflates_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_SOURCE_BYTES", 1 << 16)
    (tmp_path / f"{'0' * 64}.py.gz").write_bytes(gzip.compress(bytes(1 << 20)))
    with pytest.raises(CorruptSegment, match="at most"):
        sources.read_source(tmp_path, "0" * 64)


def test_replaying_a_trace_writes_the_same_trace(tmp_path):
    run = Run.open(write_run(tmp_path / "first", gpt(GptShape(layers=1, steps=2)), mode="verify"))
    engine = ReplayEngine(run, 0)
    writer = TraceWriter(tmp_path / "second" / "rank-00000", mode="verify")
    engine.start(writer)
    writer.close(ended="exit", engines={engine.name: engine.stop()})
    assert read_rank(tmp_path / "second") == read_rank(tmp_path / "first")
    digest = run.ranks[0].frames[0].source
    (tmp_path / "first" / "sources" / f"{digest}.py.gz").unlink()
    assert Run.open(tmp_path / "second").source(digest)
    partial = ReplayEngine(run, 0)
    partial.start(TraceWriter(tmp_path / "third" / "rank-00000"))
    assert partial.stop()["missing_sources"] == [digest]
    assert engine.stop()["events"] == run.ranks[0].num_events


def test_replay_fails_loudly_only_before_the_first_event(tmp_path):
    rows = [(event(seq, window=seq), [slot(seq)]) for seq in range(3)]
    manifest = _write(tmp_path, rows, segment_events=1)
    run = Run.open(tmp_path)
    with pytest.raises(CaptureError, match="no rank 5"):
        ReplayEngine(run, 5)

    def damage(group):
        path = tmp_path / "rank-00000" / f"slots-{group:06d}.arrow"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    assert len(manifest.segments) == 6
    damage(2)
    engine = ReplayEngine(run, 0)
    sink = TraceWriter(tmp_path / "copy" / "rank-00000")
    engine.start(sink)
    sink.close(ended="exit")
    assert engine.stop()["events"] == 1  # window 1 ends only where the damaged segment begins
    assert "changed after it was written" in engine.stop()["failed"]
    damage(0)
    with pytest.raises(CaptureError, match="Cannot replay"):
        ReplayEngine(run, 0).start(sink)


def test_emitting_a_prefix_is_what_a_crash_leaves(tmp_path):
    program = gpt(GptShape(layers=1, steps=2))
    write_run(tmp_path / "whole", program)
    write_run(tmp_path / "part", Side(program), stop=100)
    whole, part = read_rank(tmp_path / "whole"), read_rank(tmp_path / "part")
    assert part.events == whole.events[:100]
    assert Run.open(tmp_path / "part").ranks[0].manifest.ended == "exception"

    class Count:
        events = 0

        def emit(self, row, slots):
            self.events += 1

        def frame(self, row): ...

        def stack(self, stack, frames): ...

        def lifetime(self, row): ...

        def source(self, digest, text): ...

    assert emit_side(program, Count(), stop=7) == 7
