"""What a reader has to have at hand at a first difference: settings behind it, work of one side alone, calls that say something new."""

from __future__ import annotations

import json
from typing import Any

import pytest

from opguard_core.ids import SIDES
from opguard_harness.answer.plain import dumps
from opguard_harness.compare import programs
from opguard_harness.config import runs_dir
from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.registry import find
from opguard_harness.tools import comparisons
from opguard_harness.workspace.cases import note_job, open_or_resume
from opguard_harness.workspace.facts import resolve
from tests.support.driving.world import FAULT, PROGRAM
from tests.support.instructions import Instruction, Out
from tests.support.synthetic import Corrupt, Insert, Side
from tests.unit.evidence.conftest import Stored, store


def changed(stored: Stored, **fields: Any) -> Stored:
    """The comparison with some fields of its answer as given; those of the pivot below ``pivot``."""
    path = runs_dir() / stored.comparison / "answer.json"
    answer = json.loads(path.read_text())
    answer["pivot"].update(fields.pop("pivot", {}))
    answer.update(fields)
    path.write_text(json.dumps(answer))
    return stored


def setting(key: str, severity: str = "order", reference: Any = 1, suspect: Any = 0) -> dict[str, Any]:
    """A difference of the contracts."""
    return {"key": key, "severity": severity, "reference": reference, "suspect": suspect}


NOISE = [setting("rng.step.numpy", "environment"), setting("start.rng.torch", "cosmetic"), setting("source.tree", "cosmetic")]


@pytest.mark.parametrize(
    ("origin", "fits"), [("random-state", "loader.1.sampler_epoch"), ("unobserved-producer", "load.3.parts"), ("dtype", "autocast.ran")]
)
def test_settings_that_can_be_behind_it_are_told_with_both_values(stored, origin, fits):
    contract = [setting(fits), *NOISE]
    result = changed(stored, contract=contract, pivot={"origin": origin}).call("first_difference", comparison=stored.comparison)
    assert result["settings"] == [{"key": fits, "reference": 1, "suspect": 0}]
    assert result["next"][0]["tool"] == "compare_contracts"
    cited = next(item["id"] for item in result["evidence"] if item["id"].startswith("job:"))
    assert resolve(cited).data["key"] == fits
    assert len(dumps(result)) <= comparisons.ANSWER_CHARS


def test_noise_is_no_setting_and_leads_nowhere(stored):
    result = changed(stored, contract=NOISE).call("first_difference", comparison=stored.comparison)
    assert result["settings"] == []
    assert "compare_contracts" not in {call["tool"] for call in result["next"]}


def copying() -> Insert:
    """A copy of what the planted boundary reads, made before it and read by it."""
    here = PROGRAM[FAULT]
    read = here.reads[0]
    made = next(out for at in range(FAULT, -1, -1) for out in PROGRAM[at].outs if out.var == read)
    copy = Out(read, made.shape, made.dtype, "keep")
    work = Instruction("aten.clone.default", (read,), (copy,), site=here.site, calls=here.calls, phase=here.phase, module=here.module)
    return Insert(FAULT, work)


@pytest.mark.parametrize("side", SIDES)
def test_work_of_one_side_alone_before_the_place_is_shown(side):
    more, other = Side(PROGRAM, [copying()]), Side(PROGRAM, [Corrupt(FAULT)])
    stored = store(more, other) if side == "suspect" else store(other, more)
    pivot = stored.call("first_difference", comparison=stored.comparison)["pivot"]
    assert pivot["operator"] == "aten.gelu.default"
    assert [(row["operator"], row["only"]) for row in pivot["before"]] == [("aten.clone.default", side)]


def test_nothing_stands_before_a_place_where_both_sides_do_the_same(stored):
    assert "before" not in stored.call("first_difference", comparison=stored.comparison)["pivot"]


def test_a_boundary_is_told_once_whether_its_pair_is_sure_or_not(stored):
    rows = stored.call("explain_difference", comparison=stored.comparison, limit=100)["spread"]["consumers"]
    assert len({row["id"] for row in rows}) == len(rows)


def test_the_call_for_more_source_shows_lines_that_the_answer_does_not(stored):
    result = stored.call("first_difference", comparison=stored.comparison)
    call = next(call for call in result["next"] if call["tool"] == "show_source")
    shown = stored.call("show_source", **call["arguments"])
    first = {line for text in result["excerpts"].values() for line in text.splitlines()}
    assert set(shown["text"].splitlines()) - first
    assert shown["next"] or shown["last_line"] == shown["num_lines"]


def test_a_replay_is_noted_in_the_case_of_its_comparison(stored, monkeypatch):
    case, _ = open_or_resume(runs_dir(), "loss moves")
    note_job(case.id, stored.comparison)
    monkeypatch.setattr(programs, "is_replayable", lambda folder: True)
    calls = {call["tool"]: call["arguments"] for call in stored.call("first_difference", comparison=stored.comparison)["next"]}
    assert calls["confirm_difference"] == {"comparison": stored.comparison, "case": case.id}
    assert calls["record_finding"]["case"] == case.id


def test_another_difference_may_lie_behind_the_first(stored):
    assert any("compare again" in note for note in stored.call("first_difference", comparison=stored.comparison)["notes"])


def test_a_record_is_shown_field_by_field_and_each_field_is_evidence(stored):
    whole = stored.call("get_evidence", id=f"job:{stored.comparison}/answer")
    assert whole["fact"]["fields"]["verdict"] == "diverged"
    assert len(dumps(whole)) < 3_000
    for name in whole["fact"]["fields"]:
        field = stored.call("get_evidence", id=f"job:{stored.comparison}/answer/{name}")
        assert field["fact"]["part"] == name
        assert field["text"] or "value" in field["fact"]
    for call in whole["next"]:
        parse_arguments(find(call["tool"]), call["arguments"])


def test_a_long_field_is_paged_without_loss(stored):
    pages, cursor = [], ""
    while True:
        page = stored.call("get_evidence", id=f"job:{stored.comparison}/answer/pivot", cursor=cursor)
        pages.append("\n".join(page["text"].splitlines()[1:-1]))
        if page["truncated"] is None:
            break
        cursor = page["truncated"]["cursor"]
    assert len(pages) > 1
    told = json.loads("\n".join(pages))
    assert told == json.loads((runs_dir() / stored.comparison / "answer.json").read_text())["pivot"]


def test_the_program_s_own_files_are_searched_and_libraries_when_asked(stored):
    side = {"run": stored.comparison, "side": "suspect", "text": "(", "limit": 100}
    own = {hit["file"] for hit in stored.call("search_source", **side)["hits"]}
    every = [hit["file"] for hit in stored.call("search_source", **side, libraries=True)["hits"]]
    assert own < set(every)
    assert set(every[: len([file for file in every if file in own])]) == own, "the program's own come first"


def test_what_only_a_library_says_leads_to_looking_there(stored):
    side = {"run": stored.comparison, "side": "suspect"}
    libraries = stored.call("search_source", **side, text="F.", libraries=True)["hits"]
    own = {hit["file"] for hit in stored.call("search_source", **side, text="(", limit=100)["hits"]}
    text = next(hit["text"] for hit in libraries if hit["file"] not in own)
    nothing = stored.call("search_source", **side, text=text)
    assert nothing["hits"] == []
    assert stored.call(nothing["next"][0]["tool"], **nothing["next"][0]["arguments"])["hits"]
