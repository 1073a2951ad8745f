"""Coverage of device work: by count and time, by operator and kernel; the rest named with where it runs and what it touches."""

import pytest

from opguard_core.certify.devicework.coverage import BEFORE_ALL, NOT_IN_TRACE, rank_work, times_of
from opguard_core.certify.devicework.leads import LEADS_SHOWN, device_work
from opguard_core.trace.codec import to_batch
from opguard_core.trace.schema import LaunchRow
from tests.support.launch_rows import ADD, CUSTOM, GELU, TILE
from tests.support.script import Script
from tests.unit.certify.conftest import train

WATCHED = {"launches": {"active": True, "recorded": 9, "lost": 0, "escaped": 0}}


def rank(twist=None, *, report=WATCHED, steps=2):
    script = Script()
    train(script, steps=steps, twist=twist)
    return script.close(engines=report).ranks[0]


def usual(s, place, t):
    """`mm` launches one kernel, `gelu` two; a copy and a custom kernel belong to nobody."""
    if place == "after mm":
        s.launched(TILE)
    elif place == "after gelu":
        s.launched(GELU, 2)
        s.loose(CUSTOM, 3)
        s.loose("", kind="copy", touches=False)


def test_shares_by_count():
    found = rank_work(rank(usual)).to_dict()
    assert (found["launches"], found["attributed"], found["touching"], found["boundaries"]) == (14, 6, 6, 4)
    assert found["share"] == 6 / 14
    assert found["time"] is None
    assert [(row["operator"], row["launches"]) for row in found["operators"]] == [("aten.gelu.default", 4), ("aten.mm.default", 2)]


def test_what_has_no_boundary_is_named_with_where_it_runs():
    custom, copy = rank_work(rank(usual)).to_dict()["unattributed"]
    assert (custom["name"], custom["count"], custom["touching"], custom["phases"], custom["steps"]) == (CUSTOM, 6, 6, ["forward"], [0, 1])
    assert (copy["name"], copy["kind"], copy["touching"]) == ("copy", "copy", 0)


def test_shares_by_time_count_kernels_with_a_known_time():
    found = rank_work(rank(usual), {TILE: 1000.0, GELU: 500.0, CUSTOM: 100.0}).to_dict()
    assert found["time"] == {"device_ns": 4600, "attributed_ns": 4000, "share": 4000 / 4600, "timed": 12}
    assert [(row["operator"], row["device_ns"]) for row in found["operators"]] == [("aten.gelu.default", 2000), ("aten.mm.default", 2000)]


def test_replays_are_as_many_as_were_counted_and_else_as_there_are_rows():
    def replays(s, place, t):
        if place == "after gelu" and s.window == 0:
            s.replayed(s.seq - 1, TILE, 6)

    counted = {"launches": {**WATCHED["launches"], "replays": 2, "replays_unknown": 0}}
    assert [rank_work(rank(replays, report=report)).to_dict()["graph_replays"] for report in (counted, WATCHED)] == [2, 6]
    times = {TILE: 10.0}
    assert rank_work(rank(replays, report=counted), times).to_dict()["time"]["attributed_ns"] == 60


def test_times_are_read_as_they_are_stored():
    assert times_of({TILE: {"count": 3, "mean_ns": 10.5}, GELU: 4, "bad": {"mean_ns": "x"}, "nan": float("nan")}) == {TILE: 10.5, GELU: 4.0}
    assert times_of(["no"]) == {}


def test_a_rank_that_was_not_watched_says_why():
    found = rank_work(rank(report={"launches": {"active": False, "reason": "no compiler"}}))
    assert found.to_dict() == {"watched": False, "why": "no compiler"}


def test_a_rank_without_a_device_says_nothing():
    assert rank_work(rank(report={})) is None
    assert device_work(({0: None}, {0: None}), [(0, 0)]) is None


def test_lost_records_and_escaped_entry_points_are_told():
    report = {"launches": {**WATCHED["launches"], "lost": 7, "escaped": 2}}
    found = rank_work(rank(usual, report=report)).to_dict()
    assert (found["lost"], found["escaped"]) == (7, 2)


def test_rows_of_events_that_the_trace_lost_still_count():
    script = Script()
    train(script)
    script.writer.launches(
        to_batch(
            "launches",
            [LaunchRow(99_999, None, 0, "kernel", ADD, 0, 2, 0, None), LaunchRow(None, None, 0, "kernel", CUSTOM, 0, 1, 0, None)],
        )
    )
    found = rank_work(script.close(engines=WATCHED).ranks[0])
    assert (found.num_attributed, list(found.by_operator)) == (2, [NOT_IN_TRACE])
    (loose,) = found.to_dict()["unattributed"]
    assert (loose["phases"], loose["steps"], loose["touching"]) == ([BEFORE_ALL], None, 1)


def test_a_replayed_graph_counts_once_and_is_told():
    def replay(s, place, t):
        if place == "after mm":
            s.launched("", kind="graph")

    assert rank_work(rank(replay)).to_dict()["graph_replays"] == 2


def test_kernels_of_one_side_only_are_leads():
    def other(s, place, t):
        usual(s, place, t)
        if place == "after mm":
            s.launched(ADD, 5)

    sides = {0: rank_work(rank(usual))}, {0: rank_work(rank(other))}
    found = device_work(sides, [(0, 0)])
    (lead,) = found["one_sided"]
    assert (lead["kernel"], lead["only"], lead["launches"], lead["operators"], lead["ranks"]) == (
        ADD,
        "suspect",
        10,
        ["aten.mm.default"],
        [0],
    )
    mirrored = device_work(sides[::-1], [(0, 0)])
    assert [lead["only"] for lead in mirrored["one_sided"]] == ["reference"]


def test_leads_are_bounded_and_counted():
    def many(s, place, t):
        if place == "after mm":
            for at in range(40):
                s.launched(f"kernel_{at}")

    found = device_work(({0: rank_work(rank(usual))}, {0: rank_work(rank(many))}), [(0, 0)])
    assert (len(found["one_sided"]), found["one_sided_total"]) == (LEADS_SHOWN, 43)


@pytest.mark.parametrize("silent", [0, 1])
def test_a_side_that_was_not_watched_gives_no_leads(silent):
    sides = [{0: rank_work(rank(usual))}, {0: rank_work(rank(usual))}]
    sides[silent] = {0: rank_work(rank(report={"launches": {"active": False, "reason": "static"}}))}
    assert device_work((sides[0], sides[1]), [(0, 0)])["one_sided_total"] == 0
