"""Numbers in a claim that nothing it cites bears out: told apart from those that were checked, in the finding and in every report."""

import json

import pytest

from opguard_harness.workspace.cases import note_job
from opguard_harness.workspace.findings import unchecked_numbers
from tests.unit.evidence.conftest import store

SHOWN = "step 1\nrank 0\n0x12236005f620cd7e\nbytes 16384\nvalue 0.125, 3.5e-05\nev:0123456789ab/0/157"


@pytest.mark.parametrize(
    ("claim", "missing"),
    [
        ("At step 1 of rank 0.", ()),
        ("At step 2, 3 and 2.", ("2", "3")),
        ("`17` is quoted and 17 is not.", ("17",)),
        ("Bits 0x12236005f620cd7e, or 0xdead.", ("0xdead",)),
        ("16,384 bytes, +0.125, 3.5e-05; -0.125 of them.", ("-0.125",)),
        ("float32 and bf16 in block2 of v1.2.", ()),
        ("It takes 5ms, 2x, 30%.", ("5", "2", "30")),
        ("About 0.12.", ("0.12",)),
        ("No number, twelve words.", ()),
    ],
)
def test_numbers_that_no_record_says_are_named(claim, missing):
    assert unchecked_numbers(claim, SHOWN) == missing


@pytest.fixture
def state(tmp_path, monkeypatch):
    from opguard_harness.workspace import evidence

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    evidence._digest.cache_clear()


def test_a_finding_and_every_report_say_what_was_not_checked(state, tmp_path):
    stored = store()
    case = stored.call("open_case", root=str(tmp_path), symptom="x")["case"]
    note_job(case, stored.comparison)
    cited = stored.call("first_difference", comparison=stored.comparison)["evidence"][0]["id"]
    for claim, expected in (("It parts at step 1 of 77 and 99.", ["77", "99"]), ("It parts at step 1.", [])):
        recorded = stored.call("record_finding", case=case, claim=claim, basis="source inference", evidence=[cited])
        assert recorded["unchecked"] == expected
        assert all(number in recorded["summary"] for number in expected)
        assert ("Not checked" in recorded["summary"]) == bool(expected)
    written = stored.call("write_report", case=case, comparison=stored.comparison)
    with open(written["data"]["path"]) as file:
        assert [item["unchecked"] for item in json.load(file)["findings"]] == [["77", "99"], []]
    for path in (written["path"], written["page"]["path"]):
        with open(path) as file:
            text = file.read()
        assert text.count("Not checked, for nothing it cites says so") == 1
        assert "77, 99" in text


def test_a_report_with_an_altered_claim_or_list_is_named(state, tmp_path):
    from opguard_harness.workspace.reporting.recheck import unchecked

    stored = store()
    case = stored.call("open_case", root=str(tmp_path), symptom="x")["case"]
    note_job(case, stored.comparison)
    cited = stored.call("first_difference", comparison=stored.comparison)["evidence"][0]["id"]
    stored.call("record_finding", case=case, claim="It parts at step 1 of 77.", basis="source inference", evidence=[cited])
    with open(stored.call("write_report", case=case, comparison=stored.comparison)["data"]["path"]) as file:
        model = json.load(file)
    assert list(unchecked(model)) == []
    model["findings"][0]["claim"] = "It parts at step 2 of 77."
    assert [item.partition(":")[0] for item in unchecked(model)] == ["findings[0].unchecked"]
