"""Answers of tools stay small, whatever the observed programs are called."""

import json

import pytest

from opguard_harness.answer.plain import dumps
from opguard_harness.config import ANSWER_LIMIT_CHARS
from opguard_harness.tools import comparisons, sources, verdict
from opguard_harness.tools.budget import first_fitting, within
from opguard_harness.workspace import executed, stored
from tests.support.answers import answer, pivot, place


def test_a_list_is_cut_where_it_no_longer_fits():
    assert within(["aaaa", "bbbb", "c"], 17) == ["aaaa", "bbbb"]
    assert within([], 0) == []


def test_the_fullest_answer_that_fits_is_given():
    assert first_fitting([9, 5, 1], lambda level: "x" * level, 8) == "xxxxx"
    assert first_fitting([9, 8], lambda level: "x" * level, 1) == "x" * 8


def test_first_difference_is_small_even_for_long_names(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    long = place(file="d/" * 200 + "x.py", text="f(" * 400)
    value = answer(
        "diverged",
        pivot=pivot(
            reference=long, suspect=long, stack={"reference": [long] * 90, "suspect": [long] * 90}, near=[{"what": "x" * 900}] * 30
        ),
        reasons=[{"slug": "gap", "text": "t" * 500, "fix": "f" * 500}] * 9,
    )
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "answer.json").write_text(json.dumps(value))
    result = comparisons.first_difference(comparisons.FirstDifferenceArguments(comparison=str(tmp_path / "out")))
    assert len(dumps(result)) <= 6_000
    assert result.pivot["origin"] == "argument"
    assert result.excerpts["reference"]


@pytest.mark.parametrize("context", [0, 100])
def test_show_source_stays_below_the_cap_on_hostile_text(tmp_path, monkeypatch, context):
    text = "\n".join(['"\\' * 400] * 300)
    monkeypatch.setattr(executed, "executed_source", lambda trace, file: executed.Executed("d" * 64, text))
    monkeypatch.setattr(stored, "trace_of", lambda name: tmp_path)
    result = sources.show_source(sources.ShowSourceArguments(run="r", file="f", line=150, context=context))
    assert len(dumps(result)) < ANSWER_LIMIT_CHARS
    assert result.first_line <= 150 <= result.last_line
    assert result.truncated.total == 300


def test_show_source_of_a_line_beyond_the_end_shows_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(executed, "executed_source", lambda trace, file: executed.Executed("d" * 64, "a\nb\n"))
    monkeypatch.setattr(stored, "trace_of", lambda name: tmp_path)
    result = sources.show_source(sources.ShowSourceArguments(run="r", file="f", line=99))
    assert (result.first_line, result.last_line, result.num_lines, result.lines) == (1, 2, 2, [2, 2])


def test_long_lists_of_steps_are_counted():
    shown = verdict.counted({"steps": list(range(1000)), "ranks": [0], "steps_only_in": {"suspect": list(range(20))}})
    assert shown == {
        "steps": {"first": 0, "last": 999, "count": 1000},
        "ranks": [0],
        "steps_only_in": {"suspect": {"first": 0, "last": 19, "count": 20}},
    }
