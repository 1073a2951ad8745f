"""Runs and comparisons are found by id and by path."""

import json

import pytest

from opguard_harness.errors import SideNotFound
from opguard_harness.workspace.stored import answer_of, trace_of
from tests.support.answers import answer


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runs = tmp_path / "opguard" / "runs"
    for number, verdict in enumerate(["identical", "diverged"], 1):
        folder = runs / f"2026010{number}-000000-compare-aaaaaa"
        for side in ("reference", "suspect"):
            (folder / side / "trace" / "rank-00000").mkdir(parents=True)
            (folder / side / "trace" / "rank-00000" / "manifest.json").write_text("{}")
        (folder / "answer.json").write_text(json.dumps(answer(verdict)))
    single = runs / "20260103-000000-run-bbbbbb"
    (single / "trace" / "rank-00000").mkdir(parents=True)
    (single / "trace" / "rank-00000" / "manifest.json").write_text("{}")
    (single / "trace" / "manifest.json").write_text(json.dumps({"mode": "full"}))
    for noise in ("20260104-000000-compare-cccccc.failed", ".20260105-000000-compare-dd.partial-1-aa", "notes"):
        (runs / noise).mkdir()
    (runs / "file").touch()
    return runs


def test_a_trace_is_found_by_id_and_by_path(state):
    assert trace_of("20260103-000000-run-bbbbbb") == state / "20260103-000000-run-bbbbbb" / "trace"
    side = state / "20260101-000000-compare-aaaaaa" / "suspect"
    assert trace_of(str(side)) == trace_of(str(side / "trace")) == side / "trace"


def test_a_comparison_has_two_traces_and_says_so(state):
    with pytest.raises(SideNotFound, match="comparison of two runs") as caught:
        trace_of("20260101-000000-compare-aaaaaa")
    assert "suspect" in caught.value.as_dict()["fix"]


def test_a_stored_answer_is_checked_when_it_is_read(state):
    assert answer_of("20260102-000000-compare-aaaaaa")["verdict"] == "diverged"
    path = state / "20260102-000000-compare-aaaaaa" / "answer.json"
    path.write_text(json.dumps({**answer("diverged"), "verdict": "equal"}))
    with pytest.raises(SideNotFound, match="not what was written"):
        answer_of("20260102-000000-compare-aaaaaa")
    path.write_text("{")
    with pytest.raises(SideNotFound):
        answer_of("20260102-000000-compare-aaaaaa")


@pytest.mark.parametrize("name", ["", ".", "..", "nope", "/nope"])
def test_names_that_name_nothing_are_errors(state, name):
    with pytest.raises(SideNotFound):
        trace_of(name)
    with pytest.raises(SideNotFound):
        answer_of(name)
