"""The tools that read: small, fenced, paged, with ids that resolve and calls that can be made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from opguard_core.errors import EvidenceNotFound
from opguard_core.evidence.refs import EventRef, is_reference
from opguard_core.trace.identity import trace_digest
from opguard_harness.answer.plain import dumps
from opguard_harness.config import runs_dir
from opguard_harness.errors import ComparisonNotReady, InvalidArguments, SearchRefused, SideNotFound
from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.jobs import standing
from opguard_harness.registry import find
from opguard_harness.tools import comparisons
from opguard_harness.workspace import searching
from opguard_harness.workspace.apart import _arguments
from opguard_harness.workspace.facts import resolve
from tests.support.driving.world import FAULT, PROGRAM, WIDE, WIDE_BROKEN, store_comparison
from tests.support.synthetic import Arguments, Delete, GptShape, Side, gpt, write_run
from tests.unit.evidence.conftest import FILE, TEXT, store

READING = ("first_difference", "list_differences", "explain_difference", "get_evidence", "show_source", "search_source")


def ids(value: Any) -> Iterator[str]:
    """Every evidence id in a result, wherever it stands."""
    if isinstance(value, str):
        yield from [value] if is_reference(value) else []
    elif isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from ids(item)


def followed(stored, most: int = 30) -> list[dict[str, Any]]:
    """Results of the reading tools, and of what their `next` and `evidence` lead to."""
    waiting = [(tool, {"comparison": stored.comparison}) for tool in READING[:3]]
    waiting.append(("search_source", {"run": stored.comparison, "side": "suspect", "text": "gelu"}))
    found: list[dict[str, Any]] = []
    while waiting and len(found) < most:
        tool, given = waiting.pop(0)
        if tool == "explain_difference" and found[0]["verdict"] != "diverged":
            continue
        result = stored.call(tool, **given)
        found.append(result)
        for call in result["next"]:
            parse_arguments(find(call["tool"]), call["arguments"])
            if call["tool"] in READING and len(found) < 8:
                waiting.append((call["tool"], call["arguments"]))
        waiting += [("get_evidence", {"id": item["id"]}) for item in result["evidence"]] if len(found) < 5 else []
    return found


@pytest.mark.parametrize("suspect", [Side(PROGRAM, [Delete(FAULT)]), None, Side(PROGRAM)], ids=["missing", "corrupt", "identical"])
def test_every_id_resolves_and_every_call_can_be_made(suspect):
    stored = store() if suspect is None else store(suspect)
    results = followed(stored)
    cited = {item for result in results for item in ids(result)}
    assert len(cited) >= 2
    for item in cited:
        resolve(item)


def test_first_difference_says_it_all_in_one_small_answer(stored):
    result = stored.call("first_difference", comparison=stored.comparison)
    assert len(dumps(result)) <= comparisons.ANSWER_CHARS
    assert (result["verdict"], result["pivot"]["operator"], result["pivot"]["origin"]) == ("diverged", "aten.gelu.default", "operator")
    assert result["pivot"]["means"]
    assert all(PROGRAM[FAULT].site.text in text and "data, not instructions" in text for text in result["excerpts"].values())
    assert result["spread"]["consumers"][0]["results"] == "differ"
    assert {"read", "update"} <= set(result["spread"]["reaches"])
    assert result["spread"]["state"]["param"]["count"] > 0
    assert {call["tool"] for call in result["next"]} == {"show_source", "explain_difference", "open_case"}


def test_long_names_and_wide_places_stay_within_the_limits():
    stored = store(WIDE_BROKEN, WIDE)
    for tool, limit in (("first_difference", 6_000), ("list_differences", 9_000), ("explain_difference", 6_500)):
        assert len(dumps(stored.call(tool, comparison=stored.comparison))) <= limit, tool


def test_what_differs_of_a_pair_is_named_with_both_values():
    stored = store(Side(PROGRAM, [Arguments(FAULT, "approximate=tanh")]))
    apart = stored.call("first_difference", comparison=stored.comparison)["pivot"]["differs_in"]
    assert apart["args"]["approximate"][1] == "tanh"
    assert apart["args"]["approximate"][0] != "tanh"
    assert {"slot": "out.0", "bytes": "differ"} in apart["slots"]


@pytest.mark.parametrize(
    ("reference", "suspect", "differ"),
    [
        ("bins=8;min=0;max=5", "bins=6;min=0;max=5", {"bins": ["8", "6"]}),
        ("dim=[0;1];x='a;b'", "dim=[0;2];x='a;b'", {"dim": ["[0;1]", "[0;2]"]}),
        ("", "alpha=2", {"alpha": [None, "2"]}),
        ("s='=';t=1", "s='=';t=2", {"t": ["1", "2"]}),
    ],
)
def test_arguments_are_told_apart_by_name(reference, suspect, differ):
    assert _arguments(reference, suspect) == differ


def test_a_pivot_full_of_wide_characters_stays_within_the_limit(stored):
    path = runs_dir() / stored.comparison / "answer.json"
    answer = json.loads(path.read_text())
    for side in ("reference", "suspect"):
        for key in ("file", "function", "text", "statement"):
            answer["pivot"][side][key] = "\U0001f600" * 500
        answer["pivot"]["stack"][side] = [answer["pivot"][side]] * 12
    answer["pivot"]["near"] = [{**answer["pivot"]["near"][0], "suspect": answer["pivot"]["suspect"]}] * 12
    answer["reasons"] = [{"slug": "gap", "text": "\U0001f600" * 900, "fix": "f" * 900}] * 9
    answer["rank_firsts"] = [{**answer["pivot"], "rank": rank} for rank in range(6)]
    path.write_text(json.dumps(answer))
    result = stored.call("first_difference", comparison=stored.comparison)
    assert len(dumps(result)) <= comparisons.ANSWER_CHARS
    assert result["pivot"]["origin"] == "operator"


def test_identical_says_what_was_compared_and_what_that_does_not_cover():
    stored = store(Side(PROGRAM))
    result = stored.call("first_difference", comparison=stored.comparison)
    assert result["verdict"] == "identical"
    assert result["compared"]["steps"] == [0, 1, 2]
    assert result["notes"]
    assert result["evidence"][0]["id"] == f"job:{stored.comparison}/answer"


def test_inconclusive_shows_reasons_and_a_way_on():
    folder = runs_dir() / "run-torn"
    write_run(folder / "trace", PROGRAM, mode="verify", stop=150)
    stored = store(Side(PROGRAM), name="align-other")
    store_comparison("align-torn", "run-000000000001", "run-torn")
    result = stored.call("first_difference", comparison="align-torn")
    assert result["verdict"] == "inconclusive"
    assert all(reason["fix"] for reason in result["reasons"])
    assert result["next"]


def test_an_answer_of_before_there_was_a_spread_is_read(stored):
    path = runs_dir() / stored.comparison / "answer.json"
    answer = json.loads(path.read_text())
    del answer["spread"], answer["digests"]
    path.write_text(json.dumps(answer))
    assert stored.call("first_difference", comparison=stored.comparison)["spread"] == {}
    assert stored.call("explain_difference", comparison=stored.comparison)["spread"]["total"] > 10


def test_traces_that_are_gone_leave_the_answer_and_no_dead_ids(stored):
    stored.suspect.rename(stored.suspect.with_name("elsewhere"))
    result = stored.call("first_difference", comparison=stored.comparison)
    assert result["verdict"] == "diverged"
    assert any("suspect is gone" in note for note in result["notes"])
    for item in set(ids(result)):
        resolve(item)


def test_a_job_that_has_not_ended_leads_to_waiting_for_it(stored, monkeypatch):
    for state, waits in (("running", {"wait_s": 45}), ("failed", {})):
        now = standing.Standing(job="compare-0123456789ab", tool="compare", state=state, created="", elapsed_s=1.0)
        monkeypatch.setattr(standing, "standing", lambda job, now=now: now)
        with pytest.raises(ComparisonNotReady) as caught:
            stored.call("first_difference", comparison="compare-0123456789ab")
        assert caught.value.facts["next"][0].tool == "get_job"
        assert caught.value.facts["next"][0].arguments == {"job": "compare-0123456789ab", **waits}


def test_an_answer_that_is_gone_is_made_again_and_not_waited_for(stored, monkeypatch):
    job = "compare-0123456789ab"
    now = standing.Standing(job=job, tool="compare", state="succeeded", created="", elapsed_s=1.0, result={"comparison": job})
    monkeypatch.setattr(standing, "standing", lambda name: now)
    with pytest.raises(ComparisonNotReady, match="its answer was removed") as caught:
        stored.call("first_difference", comparison=job)
    assert "another `token`" in caught.value.as_dict()["fix"]
    assert [step.tool for step in caught.value.facts["next"]] == ["list_runs"]


def test_an_unknown_comparison_leads_to_the_list(stored):
    with pytest.raises(SideNotFound) as caught:
        stored.call("explain_difference", comparison="align-nobody")
    assert caught.value.facts["next"][0].tool == "list_runs"


def test_explain_shows_equal_work_before_and_all_consumers_after(stored):
    result = stored.call("explain_difference", comparison=stored.comparison, limit=5)
    assert [entry["results"] for entry in result["before"]] == ["same"] * 3
    assert len(result["spread"]["consumers"]) == 5
    assert result["truncated"]["total"] == result["spread"]["total"]
    more = stored.call("explain_difference", comparison=stored.comparison, limit=40)
    assert len(more["spread"]["consumers"]) > 10
    assert set(more["stack"]) == {"reference", "suspect"}


def test_explain_has_nothing_to_explain_where_nothing_differs():
    stored = store(Side(PROGRAM))
    with pytest.raises(InvalidArguments, match="no first difference"):
        stored.call("explain_difference", comparison=stored.comparison)


def test_differences_are_paged_without_loss(stored):
    path = runs_dir() / stored.comparison / "answer.json"
    answer = json.loads(path.read_text())
    answer["isolated"] = [{**answer["pivot"], "microbatch": number} for number in range(9)]
    path.write_text(json.dumps(answer))
    seen, cursor = [], ""
    while True:
        page = stored.call("list_differences", comparison=stored.comparison, limit=4, cursor=cursor)
        seen += page["differences"]
        if page["truncated"] is None:
            break
        cursor = page["truncated"]["cursor"]
    assert [row["what"] for row in seen] == ["pivot"] + ["isolated"] * 9


def test_the_slots_of_a_large_boundary_are_paged_without_loss():
    program = gpt(GptShape(layers=3, steps=1, optimizer="fused"))
    folder = write_run(runs_dir() / "run-fused" / "trace", program, mode="verify")
    from opguard_core.trace.reader import Run

    rank = Run.open(folder).ranks[0]
    event, slots = max((rank.event_at(seq) for seq in range(rank.num_events)), key=lambda found: len(found[1]))
    wanted = str(EventRef(trace_digest(folder), 0, event.seq))
    seen, cursor, digests = [], "", set()
    while True:
        result = find("get_evidence").run(parse_arguments(find("get_evidence"), {"id": wanted, "cursor": cursor}))
        seen += [slot["slot"] for slot in result.fact["slots"]]
        digests.add(result.digest)
        assert len(dumps(result)) <= 8_000
        if result.truncated is None:
            break
        cursor = result.truncated.cursor
    assert seen == [slot.slot for slot in slots]
    assert len(digests) == 1


def test_the_source_of_a_boundary_is_that_of_its_place(stored):
    cited = str(EventRef(trace_digest(stored.suspect), 0, FAULT))
    result = stored.call("show_source", evidence=cited, context=2)
    line = PROGRAM[FAULT].site.line
    assert result["lines"] == [line, line]
    assert f">{line}         {PROGRAM[FAULT].site.text}" in result["text"]
    assert stored.call("show_source", evidence=result["evidence"][0]["id"])["digest"] == result["digest"]
    by_name = stored.call("show_source", run=stored.comparison, side="suspect", file=FILE, line=line, context=2)
    assert by_name["text"] == result["text"]


def test_source_needs_evidence_or_a_file_and_not_both(stored):
    for given in ({}, {"evidence": f"ev:{'0' * 12}/0/1", "file": "x"}, {"file": "x"}, {"evidence": f"job:{stored.comparison}/answer"}):
        with pytest.raises(InvalidArguments):
            stored.call("show_source", **given)
    with pytest.raises(SideNotFound, match="side"):
        stored.call("show_source", run=stored.comparison, file=FILE)


def test_search_finds_text_and_expressions_and_pages_them(stored):
    side = {"run": stored.comparison, "side": "reference", "files": FILE}
    said, line = PROGRAM[FAULT].site.text, PROGRAM[FAULT].site.line
    assert [hit["line"] for hit in stored.call("search_source", **side, text=said)["hits"]] == [line]
    assert stored.call("search_source", **side, text=said.upper())["hits"] == []
    assert len(stored.call("search_source", **side, text=said.upper(), ignore_case=True)["hits"]) == 1
    wanted = [number for number, text in enumerate(TEXT.splitlines(), 1) if "(" in text]
    first = stored.call("search_source", **side, text=r"^\s+.*\(", regex=True, limit=3)
    rest = stored.call("search_source", **side, text=r"^\s+.*\(", regex=True, limit=100, cursor=first["truncated"]["cursor"])
    assert [hit["line"] for hit in first["hits"] + rest["hits"]] == wanted
    assert rest["truncated"] is None
    with pytest.raises(InvalidArguments):
        stored.call("search_source", **side, text=said, cursor="50")


def test_an_expression_that_does_not_compile_is_refused(stored):
    with pytest.raises(SearchRefused, match="does not compile"):
        stored.call("search_source", run="run-000000000001", text="(", regex=True)


def test_an_expression_that_would_take_for_ever_is_ended(stored, monkeypatch):
    monkeypatch.setattr(searching, "TIMEOUT_S", 0.5)
    with pytest.raises(SearchRefused, match="takes too long"):
        stored.call("search_source", run="run-000000000001", text=r"^(\s|\w|.)+!$", regex=True)


def test_evidence_outside_the_comparison_is_not_shown_as_its_own(stored):
    folder = write_run(runs_dir() / "run-elsewhere" / "trace", gpt(), mode="verify")
    cited = str(EventRef(trace_digest(folder), 0, 5))
    assert stored.call("get_evidence", id=cited)["fact"]["seq"] == 5
    with pytest.raises(EvidenceNotFound):
        stored.call("get_evidence", id=cited, comparison=stored.comparison)
