"""Claims: what the shim recorded is counted by event, in order, whatever batches it came in; streams, texts and memory are as given;
forks, full rings and failures are said."""

from __future__ import annotations

import itertools
import os
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_core.intercept import launches
from opguard_core.intercept.graphs import MOST_ROWS, Graphs, Node
from opguard_core.intercept.shim import (
    ALL,
    ALL_WORDS,
    ATTRIBUTED,
    CAPTURED,
    GRAPH_GONE,
    GRAPH_MADE,
    GRAPH_READY,
    GRAPHS_ONLY,
    KINDS,
    NO_BOUNDARY,
    OFF,
    Counts,
    Record,
)
from opguard_core.trace.lookups import LaunchTable
from opguard_core.trace.schema import LAUNCHES, LaunchRow

NAMES = {1: "gemm", 2: "add", 3: ""}


class Recorded:
    """Stands for the shim: gives out batches of rows (boundary, after, kind, handle, stream, bytes, words)."""

    def __init__(self, *batches):
        self.batches = [self._records(batch) for batch in batches]
        self.switched, self.asked = [], Counter()
        self.graphs = Graphs()

    def _records(self, batch):
        records = np.zeros(len(batch), Record)
        for record, (boundary, after, kind, handle, stream, num_bytes, words) in zip(records, batch, strict=True):
            given_to = boundary if boundary is not None else after
            record["boundary"] = NO_BOUNDARY if given_to is None else given_to
            record["kind"], record["handle"], record["handle_type"] = KINDS.index(kind), handle, 3
            record["stream"], record["bytes"] = stream, num_bytes
            record["flags"] = (boundary is not None) * ATTRIBUTED | (words is not None) * ALL_WORDS
            record["num_words"] = len(words or ())
            record["words"][: len(words or ())] = words or ()
        return records

    def enable(self, on):
        self.switched.append(on)

    def take_raw(self):
        return self.batches.pop(0) if self.batches else np.empty(0, Record)

    def name(self, handle, kind):
        self.asked[handle] += 1
        return NAMES[handle]

    def counts(self):
        return Counts(7, 1, 2)


def kernel(boundary, handle=1, stream=0, after=None, words=None):
    return (boundary, after, "kernel", handle, stream, 0, words)


def collected(*batches, touches=lambda words: words < 100, stream_number=lambda handle: {0: 0, 7: 1}.get(handle)):
    shim, made = Recorded(*batches), []
    collector = launches.Collector(shim, made.append, stream_number=stream_number, touches=touches)
    for _ in batches:
        collector._collect()
    collector.stop()
    return collector, shim, made


def rows(made):
    return [LaunchRow(*row.values()) for batch in made for row in batch.to_pylist()]


def table(made):
    return list(LaunchTable([pa.Table.from_batches([batch]) for batch in made]))


def test_alike_launches_are_counted_in_order_of_first_sight():
    batch = [
        kernel(4, 2),
        kernel(4, 1),
        kernel(4, 2),
        kernel(5, 1),
        kernel(4, 2, stream=7),
        (4, None, "copy", 0, 0, 10, None),
        (4, None, "copy", 0, 0, 6, None),
    ]
    _, shim, made = collected(batch)
    assert rows(made) == [
        LaunchRow(4, None, 0, "kernel", "add", 0, 2, 0, None),
        LaunchRow(4, None, 1, "kernel", "gemm", 0, 1, 0, None),
        LaunchRow(4, None, 2, "kernel", "add", 1, 1, 0, None),
        LaunchRow(4, None, 3, "copy", "", 0, 2, 16, None),
        LaunchRow(5, None, 0, "kernel", "gemm", 0, 1, 0, None),
    ]
    assert shim.asked == {1: 1, 2: 1}
    assert made[0].schema.equals(LAUNCHES)


def test_work_without_an_event_says_when_it_came_and_whether_it_may_touch_memory():
    batch = [
        kernel(None, words=[7, 500], after=3),
        kernel(None, words=[500], after=3),
        kernel(None, words=[], after=3),
        kernel(None, words=None, after=None),
        (None, 3, "graph", 9, 0, 0, None),
    ]
    _, _, made = collected(batch)
    assert rows(made) == [
        LaunchRow(None, None, 0, "kernel", "gemm", 0, 1, 0, True),
        LaunchRow(None, 3, 0, "kernel", "gemm", 0, 1, 0, True),
        LaunchRow(None, 3, 1, "kernel", "gemm", 0, 2, 0, False),
        LaunchRow(None, 3, 2, "graph", "", 0, 1, 0, True),
    ]


def test_kernels_of_a_graph_count_at_its_launches_with_who_captured_them():
    shim, made = Recorded([kernel(7, 1), kernel(7, 1), kernel(8, 2), kernel(None, 2, after=8), (None, 9, "graph", 77, 0, 0, None)]), []
    records = shim.batches[0]
    records["flags"][:4] |= CAPTURED
    records["bytes"][:4] = 3
    notes = np.zeros(2, Record)
    notes["kind"], notes["handle"], notes["bytes"] = (GRAPH_MADE, GRAPH_READY), (55, 77), (3, 55)
    notes["boundary"] = NO_BOUNDARY
    within = Recorded([(12, None, "graph", 77, 7, 0, None), kernel(12, 1)]).batches[0]
    gone = np.zeros(1, Record)
    gone["kind"], gone["handle"], gone["boundary"] = GRAPH_GONE, 77, NO_BOUNDARY
    again = Recorded([(None, 13, "graph", 77, 0, 0, None)]).batches[0]
    shim.batches = [records[:4], np.concatenate([notes, records[4:]]), np.concatenate([within, gone, again])]
    collector = launches.Collector(shim, made.append, stream_number=lambda handle: 0, touches=lambda words: words > 0)
    for _ in range(3):
        collector._collect()
    collector.stop()
    told = [(row.seq, row.after, row.kind, row.kernel, row.count, row.touches) for row in table(made)]
    assert told == [
        (None, 9, "graph", "add", 1, True),
        (None, 13, "graph", "", 1, True),
        (7, 9, "graph", "gemm", 2, True),
        (8, 9, "graph", "add", 1, True),
        (12, None, "graph", "gemm", 2, None),
        (12, None, "graph", "add", 2, None),
        (12, None, "kernel", "gemm", 1, None),
    ]
    report = collector.report()
    assert (report["replays"], report["replays_unknown"], report["recorded"]) == (3, 1, 0)


def test_a_graph_of_very_many_events_keeps_its_kernels():
    graphs = Graphs()
    for seq in range(MOST_ROWS + 1):
        graphs.captured(1, Node(0, "add", seq))
    graphs.made(5, 1)
    graphs.ready(6, 5)
    assert graphs.launched(6) == {Node(0, "add", -1): MOST_ROWS + 1}
    graphs.ready(6, 99)  # made from a graph that nobody saw
    assert graphs.launched(6) is None


def test_a_stream_no_event_ran_on_has_no_number():
    _, _, made = collected([kernel(0, stream=99)])
    assert rows(made)[0].stream is None


def test_streams_are_asked_for_a_period_later():
    known = {}
    shim, made = Recorded([kernel(0, stream=5)]), []
    collector = launches.Collector(shim, made.append, stream_number=known.get, touches=lambda words: words > 0)
    collector._collect()
    known[5] = 3
    collector._collect()
    assert rows(made)[0].stream == 3


def test_a_driver_that_does_not_tell_a_name_is_asked_again_a_few_times():
    collector, shim, _ = collected(*[[kernel(0, 3)]] * 6)
    assert shim.asked[3] == launches.NAME_TRIES
    assert collector.report()["unnamed"] == 1


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.none() | st.integers(0, 3), st.integers(1, 3), st.sampled_from([0, 7])), max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
)
def test_where_batches_end_makes_no_difference(launched, cuts):
    all_of_them = [kernel(seq, handle, stream, after=None if seq is not None else 2) for seq, handle, stream in launched]
    bounds = [0, *sorted(min(cut, len(launched)) for cut in cuts), len(launched)]
    parts = [all_of_them[low:high] for low, high in itertools.pairwise(bounds)]
    whole, split = (table(made) if (made := collected(*given)[2]) else [] for given in ([all_of_them], parts))
    assert [row[:2] + row[3:] for row in whole] == [row[:2] + row[3:] for row in split]
    assert sum(row.count for row in whole) == len(launched)


def test_a_failure_ends_the_table_and_is_said():
    def broken(words):
        raise ValueError("no such memory")

    collector, shim, made = collected([kernel(None, words=[5])], [kernel(0)], touches=broken)
    assert made == []
    assert collector.report()["reason"] == "ValueError: no such memory"
    assert not collector.report()["active"]
    assert shim.switched[-1] == OFF


def test_the_window_switches_the_shim():
    shim = Recorded()
    collector = launches.Collector(shim, print, stream_number=lambda handle: None, touches=lambda words: words > 0)
    collector.follow(False)
    collector.start()
    collector.follow(True)
    collector.follow(True)
    collector.stop()
    collector.follow(False)
    assert shim.switched == [GRAPHS_ONLY, GRAPHS_ONLY, ALL, OFF]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_finds_no_thread_and_the_parent_goes_on():
    shim, made = Recorded([kernel(0)]), []
    collector = launches.Collector(shim, made.append, stream_number=lambda handle: None, touches=lambda words: words > 0)
    collector.start()
    child = os.fork()
    if child == 0:
        os._exit(0 if collector._thread is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert collector._thread is not None
    collector.stop()
    assert sum(row.count for row in rows(made)) == 1
