"""Damage in a report is computed again from the kept tensors: a stored digit that they do not give, or an outcome, is refused by name."""

import json
import re
import shutil
import struct
from pathlib import Path

import pytest

from opguard_core.evidence.kept_pair import compare_kept, document
from opguard_core.ids import SIDES
from opguard_core.trace.boundary import BoundaryKey
from opguard_core.trace.kept import Block, Kept, KeptSlot, read_kept, write_kept
from opguard_harness.answer.plain import dumps
from opguard_harness.compare.kept_boundary import describe_kept
from opguard_harness.config import runs_dir, state_dir
from opguard_harness.errors import ReportRefused
from opguard_harness.report.markdown_page import case_page
from opguard_harness.report.page import html_page
from opguard_harness.tools.reports import WriteReportArguments, write_report
from opguard_harness.workspace.cases import cases_dir, note_job
from opguard_harness.workspace.packs.opening import open_pack
from opguard_harness.workspace.packs.writing import pack
from opguard_harness.workspace.reporting.confidence import confidence
from opguard_harness.workspace.reporting.files import gather
from tests.support.stored_case import stored_case

REPLAY = "confirm-0123456789ab"
VALUES = {"reference": [1.0, 2.0, 3.0, 4.0], "suspect": [1.0, 2.0, 3.5, 4.0]}


@pytest.fixture
def found(tmp_path, monkeypatch):
    """A comparison, and a replay of it that shows the same and kept a tensor."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "root").mkdir()
    made = stored_case(tmp_path / "root")
    kept = []
    for side, values in VALUES.items():
        path = Path(made.answer["trace"][side]) / "rank-00000" / "kept-0.safetensors"
        slot = KeptSlot("out.7", "out", "probed", "float32", (2, 2), (2, 1), "cpu", 16, mix64="0" * 16)
        key = BoundaryKey(0, 1, "forward", "aten.gelu.default", "", "forward", "F.gelu(x)", 0)
        block = Block("float32", (2, 2), struct.pack("<4f", *values))
        write_kept(path, Kept(key, made.answer["pivot"]["seq"][side], "", "", "", {"out.7": block}, {"out.7": slot}))
        kept.append(read_kept(path))
    folder = runs_dir() / REPLAY
    folder.mkdir()
    (folder / "answer.json").write_text(dumps(made.answer))
    both = (kept[0], kept[1])
    (folder / "damage.json").write_text(dumps(document(both, compare_kept(both, ({}, {})), made.answer["pivot"]["slot"], alone=False)))
    job = state_dir() / "jobs" / REPLAY
    job.mkdir(parents=True)
    made.result = job / "result.json"
    made.damage = folder / "damage.json"
    tell(made)
    return made


def tell(found, **changes):
    result = {"confirms": found.comparison, "outcome": "same place", "steps": [1, 3], **changes}
    found.result.write_text(json.dumps({"format": 1, "state": "succeeded", "result": result}))


def test_a_report_says_how_much_differs_and_that_it_came_again(found):
    model = gather(found.case, found.comparison).model
    confirmed = model["confirmation"]
    assert (confirmed["outcome"], confirmed["id"]) == ("same place", f"job:{REPLAY}/damage")
    (slot,) = confirmed["slots"]
    assert (slot["slot"], slot["state"]) == ("out.7", "different")
    assert (slot["damage"]["differing"], slot["damage"]["elements"]) == (1, 4)
    said = html_page(model)
    assert "1 of 4 differ (25.00%)" in said
    assert "came again, at the same place" in said
    assert "Elements that differ in a single bit: 1." in said
    assert "could not be compared with the traces; the trace has no digest of the reference and of the suspect." in said
    assert any(item["text"].startswith("Confirmed") and item["level"] == "good" for item in model["confidence"])


def test_one_altered_digit_of_the_damage_is_refused_by_its_place(found):
    text = found.damage.read_text()
    altered = re.sub(r'("differing": )1', r"\g<1>2", text, count=1)
    assert altered != text
    found.damage.write_text(altered)
    with pytest.raises(ReportRefused, match=rf"{REPLAY}: damage\.slots\[0\]\.damage\.differing is 2 .* give 1"):
        gather(found.case, found.comparison)


def test_kept_tensors_that_were_altered_are_refused(found):
    path = Path(found.answer["trace"]["suspect"]) / "rank-00000" / "kept-0.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ReportRefused, match=f"replay {REPLAY} shows cannot be read"):
        gather(found.case, found.comparison)


@pytest.mark.parametrize("outcome", ["another place", "not reproduced"])
def test_an_outcome_that_the_replay_does_not_show_is_refused(found, outcome):
    tell(found, outcome=outcome)
    with pytest.raises(ReportRefused, match=f"said to be {outcome}, and its traces say same place"):
        gather(found.case, found.comparison)


def test_an_answer_of_a_replay_that_has_gone_is_missed(found):
    (runs_dir() / REPLAY / "answer.json").unlink()
    tell(found, outcome="not reproduced", comparison=REPLAY)
    with pytest.raises(ReportRefused, match=f"{REPLAY} .* its answer is not there"):
        gather(found.case, found.comparison)


def test_a_replay_of_something_else_is_not_told(found):
    tell(found, confirms="compare-000000000000")
    model = gather(found.case, found.comparison).model
    assert model["confirmation"] is None
    assert "only their digests are known to differ" in html_page(model)


@pytest.mark.parametrize(
    ("verdict", "told", "said"),
    [
        ("", "no answer", "came to no answer"),
        ("inconclusive", "inconclusive", "could not be judged"),
        ("identical", "not reproduced", "did not come again"),
    ],
)
def test_a_replay_that_shows_nothing_is_not_told_as_one_that_shows_no_difference(found, verdict, told, said):
    model = gather(found.case, found.comparison).model
    silent = {**model["confirmation"], "outcome": "not reproduced", "verdict": verdict, "slots": [], "slots_total": 0, "counts": {}}
    page, text = (layout({**model, "confirmation": silent}) for layout in (html_page, case_page))
    assert said in page
    assert ("did not come again" in page) == (verdict == "identical")
    assert "compared byte by byte" not in page
    assert f"A replay of both sides: {told}" in text
    (point,) = [item for item in confidence(found.answer, silent) if "replay" in item["text"]]
    assert said in point["text"]


def test_a_replay_that_left_no_answer_confirms_and_denies_nothing(found):
    (runs_dir() / REPLAY / "answer.json").unlink()
    tell(found, outcome="not reproduced")
    model = gather(found.case, found.comparison).model
    assert "neither confirms nor denies" in html_page(model)
    assert "did not come again" not in html_page(model)


def test_a_replay_whose_other_side_kept_nothing_does_not_say_that_one_side_alone_runs_the_operator(found):
    folder = found.damage.parent
    traces = {side: folder / "replay-1" / side / "trace" for side in SIDES}
    for side, trace in traces.items():
        shutil.copytree(found.answer["trace"][side], trace)
    (traces["suspect"] / "rank-00000" / "kept-0.safetensors").unlink()
    again = {**found.answer, "trace": {side: str(trace) for side, trace in traces.items()}}
    (folder / "answer.json").write_text(dumps(again))
    told = describe_kept(found.answer, again, traces, folder)
    assert told.text == "only the reference kept the boundary"
    assert (told.damage["class"], "only" in told.damage) == ("unknown", False)
    assert told.why.startswith("suspect: ")
    assert "reference:" not in told.why
    stored = json.loads(found.damage.read_text())
    assert "effect" not in stored
    assert [slot["why"] for slot in stored["slots"]] == ["the suspect kept no such boundary"]
    model = gather(found.case, found.comparison).model
    assert "runs this operator" not in html_page(model)
    assert "only the reference runs it" not in case_page(model)


def test_a_pack_brings_what_was_confirmed(found, tmp_path, monkeypatch):
    note_job(found.case.id, REPLAY)
    before = gather(found.case, found.comparison).model["confirmation"]
    pack(found.case.id, tmp_path / "case.zip")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    brought = open_pack(tmp_path / "case.zip").case
    model = gather(brought, found.comparison).model
    assert model["confirmation"] == before
    assert write_report(WriteReportArguments(brought.id)).verdict == "diverged"
    reported = json.loads((cases_dir() / brought.id / "report.json").read_text())["comparison"]["id"]
    assert reported == found.comparison, "the replay has an answer, too, and is not what is reported"
    assert any(item["text"].startswith("Confirmed") for item in model["confidence"])
    (path,) = (state_dir() / "runs" / REPLAY).glob("damage.json")
    path.write_text(path.read_text().replace('"differing": 1', '"differing": 2', 1))
    with pytest.raises(ReportRefused, match="differing is 2"):
        gather(brought, found.comparison)
