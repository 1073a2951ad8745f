"""Keys of boundaries: the same place has one name in every trace, and each of its occurrences another."""

from __future__ import annotations

import pytest

from opguard_core.errors import EvidenceNotFound
from opguard_core.trace.boundary import BoundaryKey, find_boundary, key_of, parse_key
from opguard_core.trace.reader import RankTrace
from opguard_core.trace.writer import TraceWriter
from tests.support.traces import event, frame, slot

PLAIN = {
    "rank": 1,
    "step": 0,
    "phase": "forward",
    "operator": "aten.add.Tensor",
    "module": "",
    "function": "f",
    "text": "x + y",
    "occurrence": 0,
}


@pytest.fixture
def trace(tmp_path):
    """Windows 0 and 1 with two expressions, one of them three times, a marker between and an event without frames."""
    folder = tmp_path / "rank-00000"
    writer = TraceWriter(folder)
    writer.frame(frame(0)._replace(function="f", text="x + y"))
    writer.frame(frame(1)._replace(function="g", text="x + y"))
    writer.stack(0, [0])
    rows = [
        event(0, user_frame=0),
        event(1, user_frame=1),
        event(2, kind="marker", operator="opguard.backward.begin"),
        event(3, user_frame=0),
        event(4, user_frame=0, phase="recompute"),
        event(5, user_frame=0, module="blocks.0"),
        event(6, user_frame=0),
        event(7),
        event(8, user_frame=0, operator="aten.mul.Tensor"),
        event(9, user_frame=0, window=1),
        event(10, user_frame=0, window=1),
    ]
    for row in rows:
        writer.emit(row, [] if row.kind == "marker" else [slot(row.seq)])
    writer.close(ended="exit")
    return RankTrace.open(folder)


def test_occurrences_count_what_stands_at_one_place_in_one_step(trace):
    occurrences = {seq: key_of(trace, 1, seq).occurrence for seq in range(11) if seq != 2}
    assert occurrences == {0: 0, 1: 0, 3: 1, 4: 0, 5: 0, 6: 2, 7: 0, 8: 0, 9: 0, 10: 1}


def test_every_key_leads_back_to_its_event_and_no_two_are_equal(trace):
    keys = {seq: key_of(trace, 1, seq) for seq in range(11) if seq != 2}
    assert len(set(keys.values())) == len(keys)
    assert {seq: find_boundary(trace, key) for seq, key in keys.items()} == {seq: seq for seq in keys}


def test_a_key_says_where_it_is(trace):
    assert key_of(trace, 1, 3) == BoundaryKey(1, 0, "forward", "aten.add.Tensor", "", "f", "x + y", 1)
    assert key_of(trace, 1, 7).text == ""


def test_what_is_no_boundary_or_not_there_has_no_key(trace):
    with pytest.raises(EvidenceNotFound, match="marker"):
        key_of(trace, 0, 2)
    with pytest.raises(EvidenceNotFound, match="no event 11"):
        key_of(trace, 0, 11)
    key = key_of(trace, 0, 6)
    for changes in ({"occurrence": 3}, {"step": 7}, {"operator": "aten.neg.default"}, {"text": "x"}):
        assert find_boundary(trace, BoundaryKey(**{**key.as_dict(), **changes})) is None


def test_the_plain_form_is_read_again():
    assert parse_key(PLAIN).as_dict() == PLAIN


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {},
        {**PLAIN, "more": 1},
        {name: PLAIN[name] for name in PLAIN if name != "text"},
        {**PLAIN, "rank": "0"},
        {**PLAIN, "step": -1},
        {**PLAIN, "step": 1.0},
        {**PLAIN, "occurrence": True},
        {**PLAIN, "occurrence": 1 << 60},
        {**PLAIN, "text": None},
        {**PLAIN, "text": "x" * (1 << 20)},
    ],
)
def test_another_form_is_refused(broken):
    with pytest.raises(ValueError, match=r"boundary"):
        parse_key(broken)
