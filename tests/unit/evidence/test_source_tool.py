"""show_source on a comparison: both sides, the expression underlined, and what changed between the two functions."""

from __future__ import annotations

import pytest

from opguard_core.evidence.refs import EventRef
from opguard_core.trace.identity import trace_digest
from opguard_harness.config import runs_dir
from opguard_harness.workspace.source_changes import source_changes
from opguard_harness.workspace.stored import answer_of
from tests.support import synthetic
from tests.support.driving.world import BROKEN, FAULT, PROGRAM, store_comparison
from tests.support.synthetic import Delete, Side, write_run
from tests.unit.evidence.conftest import FILE, Stored, store

LINE = PROGRAM[FAULT].site.line
BODY = ("class Mlp(Module):", "    def forward(self, x):", f"        {PROGRAM[FAULT].site.text}", "        return self.down(x, 0.5)")


@pytest.fixture
def program(monkeypatch):
    """Makes the next runs execute a file that is real code around the fault."""
    plain = synthetic.source_texts

    def use(*body: str) -> None:
        rows = [""] * 60
        rows[LINE - 3 : LINE - 3 + len(body)] = body
        monkeypatch.setattr(synthetic, "source_texts", lambda side: {**plain(side), FILE: "\n".join(rows) + "\n"})

    return use


def stored_pair(program, suspect=BROKEN, body=BODY) -> Stored:
    program(*BODY)
    write_run(runs_dir() / "run-000000000001" / "trace", Side(PROGRAM), mode="verify")
    program(*body)
    write_run(runs_dir() / "run-000000000002" / "trace", suspect, mode="verify")
    store_comparison("align-0123456789ab", "run-000000000001", "run-000000000002")
    return Stored("align-0123456789ab", runs_dir() / "run-000000000001" / "trace", runs_dir() / "run-000000000002" / "trace")


def test_both_functions_and_what_changed_between_them_are_shown(program):
    stored = stored_pair(program, body=(*BODY[:3], "        return self.down(x,", "            0.25)  # less"))
    cited = str(EventRef(trace_digest(stored.suspect), 0, FAULT))
    shown = stored.call("show_source", evidence=cited, run=stored.comparison, context=2)
    assert (shown["side"], shown["counterpart"]["side"], shown["compared"]) == ("suspect", "reference", "structure")
    assert shown["changes"] == [
        {"kind": "argument", "before": "0.5", "after": "0.25", "reference": [LINE + 1] * 2, "suspect": [LINE + 2] * 2,
         "within": "return self.down(x, 0.25)"}
    ]  # fmt: skip
    assert shown["function"] == {"name": "Mlp.forward", "first": LINE - 1, "last": LINE + 2}
    assert "0.5" in shown["counterpart"]["text"]
    assert "data, not instructions" in shown["counterpart"]["text"]
    assert "differ in 1 place" in shown["summary"]
    other = stored.call("show_source", evidence=shown["counterpart"]["id"], run=stored.comparison)
    assert (other["side"], other["changes"]) == ("reference", shown["changes"])
    assert source_changes(answer_of(stored.comparison))["changes"][0]["after"] == "0.25"


def test_the_same_code_is_said_to_be_the_same(program):
    stored = stored_pair(program)
    shown = stored.call("show_source", run=stored.comparison, side="reference", file=FILE, line=LINE)
    assert "execute the same function" in shown["summary"]
    assert (shown["changes"], shown["compared"]) == ([], "structure")


def test_a_side_that_has_no_such_operator_is_looked_up_by_name(program):
    stored = stored_pair(program, Side(PROGRAM, [Delete(FAULT)]), (*BODY[:2], "        pass", BODY[3]))
    shown = stored.call("show_source", evidence=str(EventRef(trace_digest(stored.reference), 0, FAULT)), run=stored.comparison)
    assert shown["counterpart"]["function"]["name"] == "Mlp.forward"
    assert "lines" not in shown["counterpart"]
    assert [(change["kind"], change["before"]) for change in shown["changes"]] == [("removed", PROGRAM[FAULT].site.text)]


def test_a_line_of_a_module_has_no_counterpart_and_is_shown(program):
    stored = stored_pair(program, body=(*BODY[:2], "        pass", BODY[3]))
    shown = stored.call("show_source", run=stored.comparison, side="reference", file=FILE, line=1)
    assert shown["counterpart"] == {}
    assert "Nothing on the other side is known to correspond" in shown["summary"]
    assert ">" in shown["text"]


def test_a_run_alone_has_no_other_side(program):
    stored = stored_pair(program)
    shown = stored.call("show_source", run="run-000000000001", file=FILE, line=LINE)
    assert shown["function"]["name"] == "Mlp.forward"
    assert (shown["side"], shown["counterpart"], shown["compared"]) == ("", {}, "")


def test_what_is_no_code_is_compared_by_lines_and_says_so():
    stored = store()
    cited = str(EventRef(trace_digest(stored.suspect), 0, FAULT))
    shown = stored.call("show_source", evidence=cited, run=stored.comparison)
    assert shown["compared"] == "lines"
    assert "Compared by lines" in shown["notes"][0]


def test_every_rank_says_how_its_own_difference_goes_on():
    for name, sides in (("run-000000000001", [Side(PROGRAM)] * 3), ("run-000000000002", [BROKEN] * 3)):
        write_run(runs_dir() / name / "trace", *sides, mode="verify")
    store_comparison("align-0123456789ab", "run-000000000001", "run-000000000002")
    stored = Stored("align-0123456789ab", runs_dir(), runs_dir())
    told = stored.call("explain_difference", comparison=stored.comparison)
    assert [item["rank"] for item in told["ranks"]] == [1, 2]
    for item in told["ranks"]:
        assert item["total"] == told["spread"]["total"]
        assert item["state"]["param"] > 0
        assert {"read", "update"} <= item["reaches"].keys()
        assert all(f"/{item['rank']}/" in found for found in item["reaches"].values())
    assert len(told["spread"]["consumers"]) >= 10
    rows = stored.call("list_differences", comparison=stored.comparison)["differences"]
    assert [(row["what"], row["rank"], row["thread"]) for row in rows] == [
        ("pivot", 0, "main"), ("first of its rank", 1, "main"), ("first of its rank", 2, "main")
    ]  # fmt: skip
