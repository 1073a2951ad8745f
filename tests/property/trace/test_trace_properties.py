"""Claims: any rows that fit the schema come back unchanged, however they are cut into segments; merging losses is set
arithmetic; and an index read back to any byte is a prefix of what was written."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opguard_core.trace.codec import decode_segment, encode_segment, to_batch
from opguard_core.trace.columns import StringTables, to_columns
from opguard_core.trace.drops import complement, merge_ranges
from opguard_core.trace.index import Group, IndexWriter, SegmentEntry, read_index
from opguard_core.trace.schema import EventRow, FrameRow, LifetimeRow, SlotRow
from opguard_core.trace.writer import TraceWriter
from tests.support.traces import Rows, read_rank

settings.register_profile("trace", derandomize=True, deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
PROFILE = settings.get_profile("trace")

u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
count = st.integers(0, 2**63 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=8)
few = st.sampled_from(["", "aten.add.Tensor", "main", "größe"])
maybe = st.none() | count
maybe32 = st.none() | u32


def events(seq):
    return st.builds(
        EventRow, st.just(seq), few, few, i64, maybe, maybe, few, u32, u64, u32, u32, few, text, few, maybe, maybe32, maybe32, maybe32,
        text, few, st.none() | u64, st.booleans(),
    )  # fmt: skip


def slots(seq):
    return st.builds(
        SlotRow, st.just(seq), few, few, few, few, text, few, few, maybe32, u64, u64, maybe, u64, u64, u64, u64, u32, st.booleans(), text
    )


@st.composite
def ranks(draw):
    """Rows of one rank: events with rising windows, each with its slots."""
    total = draw(st.integers(0, 12))
    windows = sorted(draw(st.lists(st.integers(0, 4), min_size=total, max_size=total)))
    rows = [draw(events(seq))._replace(window=window) for seq, window in enumerate(windows)]
    return rows, [draw(st.lists(slots(seq), max_size=3)) for seq in range(total)]


@given(ranks(), st.integers(1, 12))
@settings(PROFILE, max_examples=15)
def test_round_trip(rank, segment_events):
    rows, row_slots = rank
    with TemporaryDirectory() as folder:
        writer = TraceWriter(Path(folder) / "rank-00000", segment_events=segment_events)
        for row, its in zip(rows, row_slots, strict=True):
            writer.emit(row, its)
        assert writer.close(ended="exit").drops.events == 0
        assert read_rank(Path(folder)) == Rows(rows, row_slots, [], [], [])


def through_bytes(table, rows, compression):
    data = encode_segment(table, [to_batch(table, rows)], compression).to_pybytes()
    return decode_segment(table, data, rows=len(rows), path=Path())


@given(st.lists(st.builds(FrameRow, u32, text, few, text, u32, u32, u32, u32, st.integers(-1, 2**31 - 1), text, text, text), min_size=1))
@settings(PROFILE)
def test_frames(rows):
    decoded = through_bytes("frames", rows, "zstd")
    strings = StringTables()
    columns = to_columns("frames", decoded, strings)
    assert columns["text"].tolist() == [row.text for row in rows]
    assert [strings["category"][code] for code in columns["category"]] == [row.category for row in rows]
    assert columns["lasti"].tolist() == [row.lasti for row in rows]


@given(st.lists(st.builds(LifetimeRow, u32, u64, u64, maybe), min_size=1))
@settings(PROFILE)
def test_lifetimes(rows):
    decoded = through_bytes("lifetimes", rows, "lz4")
    dead = to_columns("lifetimes", decoded, StringTables())["dead_seq"].tolist()
    assert dead == [-1 if row.dead_seq is None else row.dead_seq for row in rows]


ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)).map(lambda pair: (pair[0], pair[0] + pair[1])))


def numbers(pairs):
    return {number for first, last in pairs for number in range(first, last + 1)}


@given(ranges, st.integers(0, 50))
@settings(PROFILE)
def test_ranges_are_sets(pairs, stop):
    merged = merge_ranges(pairs)
    assert numbers(merged) == numbers(pairs)
    assert all(left[1] + 1 < right[0] for left, right in itertools.pairwise(merged))
    assert numbers(complement(pairs, stop)) == set(range(stop)) - numbers(pairs)


entries = st.builds(
    lambda group, rows, first: SegmentEntry(f"events-{group:06d}.arrow", "events", rows, 100, "a" * 64, first, first + rows - 1),
    st.integers(0, 10**7), st.integers(1, 9), st.integers(0, 99),
)  # fmt: skip


@given(st.lists(st.builds(lambda entry, lost: Group((entry,), tuple(lost)), entries, ranges), max_size=4), st.data())
@settings(PROFILE)
def test_any_cut_of_an_index_is_a_prefix(groups, data):
    with TemporaryDirectory() as folder:
        writer = IndexWriter(Path(folder), {"format": 1})
        for group in groups:
            writer.append(group)
        writer.close()
        path = Path(folder) / "index.log"
        whole = path.read_bytes()
        assert read_index(path).groups == tuple(groups)
        cut = data.draw(st.integers(0, len(whole) - 1))
        path.write_bytes(whole[:cut])
        found = read_index(path)
        assert found.groups == tuple(groups[: len(found.groups)])
        assert found.torn is not None or whole[:cut].endswith(b"\n")
