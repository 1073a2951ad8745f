"""Filters as an engineer meets them: from an answer's evidence to a dry run, a file, and a comparison that names it."""

import json
from pathlib import Path

import pytest

from opguard_harness.__main__ import main
from opguard_harness.answer.schema import compare_schema
from opguard_harness.answer.validate import faults
from tests.support.calls import finished
from tests.support.script import Held, Script
from tests.unit.certify.conftest import train
from tests.unit.certify.test_filters import kept_aside
from tests.unit.certify.test_origins import clone

REASON = "a statistic that only a log line shows \x1b[31m"


def padded(*twists):
    """So many operators that a filter of a few pairs is below 5 %."""

    def twist(s, place, t):
        for at in range(40 if place == "batch" else 0):
            s.free(s.op("aten.neg.default", [t["x"]], (4, 8), at=f"pad{at}(x)", line=60 + at))
        for each in twists:
            each(s, place, t)

    return twist


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def command(capsys):
    def run(*words, code=0):
        """Run one command in this process; returns what it printed."""
        assert main([*map(str, words)]) == code, capsys.readouterr()
        return capsys.readouterr()

    return run


@pytest.fixture
def compared(place, command):
    """A stored comparison of two written trainings."""

    def run(reference, suspect, *words, code, name="first"):
        for side, twist in (("reference", reference), ("suspect", suspect)):
            if not (place / side).exists():
                script = Script(place / side)
                train(script, twist=twist)
                script.close()
        sides = "--reference", place / "reference", "--suspect", place / "suspect"
        answer = json.loads(command("compare", *sides, "--out", place / name, "--json", *words, code=code).out)
        assert faults(answer, compare_schema()) == []
        return answer

    return run


def evidence(boundary):
    return f"suspect:{boundary['rank']}:{boundary['seq']['suspect']}"


def unread(content):
    return padded(kept_aside(content, read=False))


def test_from_an_open_end_to_a_verdict_with_a_filter(place, command, compared):
    first = compared(unread(500), unread(501), code=3)
    assert [reason["slug"] for reason in first["reasons"]] == ["unresolved-difference"]
    (candidate,) = first["candidates"]
    words = ["add", place / "first", "--evidence", evidence(candidate), "--slot", candidate["slot"], "--reason", REASON]

    tried = json.loads(command("filters", *words, "--json").out)
    assert (tried["before"]["verdict"], tried["after"]["verdict"], tried["verdict_changes"]) == ("inconclusive", "identical", True)
    assert (tried["pairs_hidden"], tried["differences_hidden"], tried["refused"], tried["applied"]) == (1, 1, "", False)
    assert tried["filters"][0]["hidden"][0]["suspect"]["text"] == "aside(x)"
    assert json.loads(command("filters", "--json").out)["filters"] == [], "a dry run writes nothing"

    page = command("filters", *words, "--author", "A. Person", "--apply").out
    assert "verdict     inconclusive (unresolved-difference) -> identical" in page
    assert "\x1b" not in page
    listed = json.loads(command("filters", "list", "--json").out)
    (rule,) = listed["filters"]
    assert (rule["reason"], rule["author"]) == (REASON, "A. Person")
    assert rule["evidence"] == [f"{first['trace']['suspect']}#rank=0&seq={candidate['seq']['suspect']}"]
    page = command("filters", "list").out
    assert "only a log line shows \\x1b[31m" in page
    assert "\x1b" not in page

    answer = compared(None, None, "--filters", listed["path"], code=0, name="second")
    (entry,) = answer["filters"]
    assert (entry["id"], entry["reason"], entry["evidence"], entry["hits"]) == (rule["id"], REASON, rule["evidence"], 1)
    again = command("compare", "--reference", place / "reference", "--suspect", place / "suspect", "--filters", listed["path"], code=0).out
    assert f"filters     {rule['id']} hid 1; 1 pairs of boundaries are hidden" in again
    sides = {side: str(place / side) for side in ("reference", "suspect")}

    def call(name, **arguments):
        return json.loads(command("call", name, json.dumps(arguments)).out)

    told = [call("first_difference", comparison=str(place / "second")), finished(call, "align", **sides, filters=listed["path"])]
    for result in told:
        assert result["verdict"] == "identical"
        assert result["summary"].endswith("Benign filters hid what differs at 1 pair of boundaries."), "never without them"
    assert compared(None, None, code=3, name="third")["filters"] == [], "filters are off unless they are named"

    page = command("filters", "dry-run", place / "first").out
    assert "verdict     inconclusive (unresolved-difference) -> identical" in page
    assert "removed" in command("filters", "remove", rule["id"]).out
    assert "no filters in" in command("filters").out


def test_a_filter_for_what_must_not_be_hidden_is_tried_and_not_written(place, command, compared):
    def update(content):
        def change(s, where, t):
            if where == "after backward":
                t["w"] = s.op("aten.mul_.Tensor", [t["w"]], (8, 8), content, into=t["w"], at="decay(w)", line=30, phase="optimizer")

        return padded(change)

    first = compared(update(1), update(2), code=1)
    words = ["add", place / "first", "--evidence", evidence(first["pivot"]), "--slot", "mut.0", "--reason", "never mind"]
    tried = json.loads(command("filters", *words, "--json").out)
    assert not tried["verdict_changes"]
    assert "an update of parameters or optimizer state, which no filter may hide" in tried["refused"]
    assert "refused     Filter" in command("filters", *words).out
    said = command("filters", *words, "--apply", "--json", code=2)
    assert json.loads(said.out)["error"]["slug"] == "filter-refused"
    assert json.loads(command("filters", "--json").out)["filters"] == []

    site = {key: first["pivot"]["suspect"][key] for key in ("file", "function", "text")}
    rule = {"operator": "aten.mul_.Tensor", "slot": "mut.0", "suspect": site, "reason": "by hand", "evidence": ["suspect:0:1"]}
    (place / "mine.json").write_text(json.dumps({"format": 1, "filters": [rule]}))
    answer = compared(None, None, "--filters", place / "mine.json", code=1, name="second")
    assert answer["pivot"] == first["pivot"]
    assert [reason["slug"] for reason in answer["reasons"]] == ["filter-refused"]
    assert (answer["filters"][0]["hits"], answer["filters"][0]["refused"]) == (0, 1)


def test_what_a_hidden_difference_causes_is_not_called_equal(place, command, compared):
    first = compared(padded(clone()), padded(clone(Held(9))), code=1)
    words = ["add", place / "first", "--evidence", evidence(first["pivot"]), "--slot", first["pivot"]["slot"], "--reason", "no"]
    tried = json.loads(command("filters", *words, "--json").out)
    assert tried["after"] == {"verdict": "inconclusive", "reasons": ["filtered-difference"], "pivot": None}


@pytest.mark.parametrize(
    ("changes", "slug", "said"),
    [
        ({"--evidence": "suspect:0:999999"}, "evidence-not-found", "no event 999999"),
        ({"--evidence": "suspect:7:1"}, "evidence-not-found", "of rank 7"),
        ({"--evidence": "I saw it"}, "evidence-not-found", "no evidence of an answer"),
        ({"--evidence": "/elsewhere#rank=0&seq=1"}, "evidence-not-found", "not in a trace of this comparison"),
        ({"--slot": "out.9"}, "filter-invalid", "it has in.0, out.0"),
        ({"--reason": " "}, "filter-invalid", "gives no reason"),
        ({"--reason": "x" * 501}, "filter-invalid", "501 characters"),
    ],
)
def test_evidence_slot_and_reason_have_to_hold(place, command, compared, changes, slug, said):
    first = compared(padded(clone()), padded(clone(Held(9))), code=1)
    options = {"--evidence": evidence(first["pivot"]), "--slot": first["pivot"]["slot"], "--reason": "no", **changes}
    words = [word for option in options.items() for word in option]
    error = json.loads(command("filters", "add", place / "first", *words, "--apply", "--json", code=2).out)["error"]
    assert error["slug"] == slug
    assert said in error["text"]


def test_evidence_of_both_sides_names_both_places(place, command, compared):
    first = compared(padded(clone()), padded(clone(Held(9))), code=1)
    seq = first["pivot"]["seq"]
    both = ["--evidence", f"reference:0:{seq['reference']}", "--evidence", f"{first['trace']['suspect']}#rank=0&seq={seq['suspect']}"]
    words = ["add", place / "first", "--slot", first["pivot"]["slot"], "--reason", "no", "--json"]
    made = json.loads(command("filters", *words, *both).out)["filter"]
    assert made["reference"] == made["suspect"] == {"file": "model.py", "function": "forward", "text": "h.clone()"}
    one_side = ["--evidence", f"suspect:0:{seq['suspect']}", "--evidence", f"suspect:0:{seq['suspect'] - 1}"]
    assert json.loads(command("filters", *words, *one_side, code=2).out)["error"]["slug"] == "filter-invalid"


def test_a_filter_file_that_is_not_there_or_damaged_stops_a_comparison_before_it_runs(place, command, compared):
    compared(padded(), padded(), code=0)
    for path, said in ((place / "none.json", "does not exist"), (place / "reference" / "manifest.json", "no filter file")):
        sides = "--reference", place / "reference", "--suspect", place / "suspect", "--out", place / "never"
        error = json.loads(command("compare", *sides, "--filters", path, "--json", code=2).out)["error"]
        assert error["slug"] == "filters-damaged"
        assert said in error["text"]
    assert not (place / "never").exists()


def test_the_tools_do_what_the_command_does(place, command, compared):
    def call(name, code=0, **arguments):
        return json.loads(command("call", name, json.dumps(arguments), code=code).out)

    first = compared(unread(500), unread(501), code=3)
    (candidate,) = first["candidates"]
    case = call("open_case", symptom="a statistic differs", root=str(place))["case"]
    cited = [entry["id"] for entry in call("first_difference", comparison=str(place / "first"))["evidence"]]
    both = [name for name in cited if name.split("/")[2] == str(candidate["seq"]["suspect"])]
    assert len(both) == 2, "the candidate on both sides"
    given = {"comparison": str(place / "first"), "evidence": both, "slot": "out.0", "reason": REASON, "case": case}
    tried = call("add_benign_filter", **given)
    assert not tried["applied"]
    assert "hides 1 difference in that comparison; the verdict goes from inconclusive to identical. Dry run" in tried["summary"]
    assert [entry["id"] for entry in tried["evidence"]] == [f"{name}/out.0" for name in both]
    assert call("add_benign_filter", **{**given, "evidence": [f"{name}/out.0" for name in both], "slot": ""})["filter"]["slot"] == "out.0"
    assert call("list_filters", case=case)["filters"] == []
    (following,) = tried["next"]
    applied = call(following["tool"], **following["arguments"])
    assert applied["applied"]
    listed = call("list_filters", case=case)
    assert [rule["reason"].replace("\\x1b", "\x1b") for rule in listed["filters"]] == [REASON]
    assert call("list_filters")["filters"] == [], "the case has a file of its own"
    assert listed["path"].endswith(f"/cases/{case}/filters.json")
    following = applied["next"][0]
    assert (following["tool"], following["arguments"]["filters"], following["arguments"]["case"]) == ("align", listed["path"], case)
    aligned = finished(call, following["tool"], **following["arguments"])
    assert aligned["verdict"] == "identical"
    assert aligned["compared"]["filtered"] == {"pairs": 1, "differences": 1}
    sides = {side: str(place / side) for side in ("reference", "suspect")}
    assert finished(call, "align", **sides)["verdict"] == "inconclusive"
    rows = call("list_runs", case=case)["runs"]
    assert [(row["id"], row["kind"], row["state"], row["verdict"]) for row in rows] == [
        (aligned["comparison"], "compare", "succeeded", "identical")
    ]
    report = call("write_report", case=case, verdict="identical")
    assert listed["filters"][0]["id"] in Path(report["path"]).read_text()
    assert call("add_benign_filter", code=2, remove="x", apply=True)["error"]["slug"] == "invalid-arguments"
    assert call("add_benign_filter", code=2, comparison="x")["error"]["slug"] == "invalid-arguments"
    assert call("add_benign_filter", code=2, remove="none")["error"]["slug"] == "filter-not-found"
    assert call("list_filters", code=2, case=case, filters=listed["path"])["error"]["slug"] == "invalid-arguments"
    assert call("add_benign_filter", code=2, **{**given, "evidence": ["ev:000000000000/0/92"]})["error"]["slug"] == "evidence-not-found"
    removed = call("add_benign_filter", remove=listed["filters"][0]["id"], case=case)
    assert removed["summary"].startswith("Removed filter")
    assert call("list_filters", **removed["next"][0]["arguments"])["summary"] == "No filters."


def test_a_long_list_is_cut_and_continued(place, command):
    site = {"file": "m.py", "function": "f", "text": "g(x)"}
    base = {"operator": "aten.sin.default", "suspect": site, "reason": "r" * 500, "evidence": ["suspect:0:1"]}
    rules = [{**base, "slot": f"out.{at}", "id": f"rule-{at:03d}"} for at in range(60)]
    (place / "many.json").write_text(json.dumps({"format": 1, "filters": rules}))
    seen, cursor = [], ""
    for _ in range(20):
        part = json.loads(command("call", "list_filters", json.dumps({"filters": str(place / "many.json"), "cursor": cursor})).out)
        seen += [rule["id"] for rule in part["filters"]]
        if part["truncated"] is None:
            break
        assert part["truncated"]["shown"] < part["truncated"]["total"]
        cursor = part["truncated"]["cursor"]
    assert seen == [rule["id"] for rule in rules]
