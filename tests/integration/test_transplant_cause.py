"""One investigation by transplants: a planted bug is the cause of all that differs, two planted bugs are both found."""

from __future__ import annotations

import html
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from opguard_harness.errors import ReportRefused
from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.registry import find
from opguard_harness.report.markdown_page import case_page
from opguard_harness.report.page import html_page
from opguard_harness.report.progress import Silent
from opguard_harness.report.transplant_words import sentence
from opguard_harness.workspace.cases import note_job, open_or_resume, require_case
from opguard_harness.workspace.facts import resolve
from opguard_harness.workspace.packs.opening import open_pack
from opguard_harness.workspace.packs.writing import pack
from opguard_harness.workspace.reporting.files import gather

pytestmark = [pytest.mark.torch, pytest.mark.full, pytest.mark.timeout(600)]

PROGRAM = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(5):
    x = torch.randn(6, 8)
    y = net(x) * {scale}
    z = y + {shift}
    loss = z.square().mean(){extra}
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
RIGHT = {"scale": "1.0", "shift": "0.5", "extra": ""}


class _Job(Silent):
    def __init__(self, job: str) -> None:
        super().__init__()
        self.job = job


def call(tool: str, job: str, **given: Any) -> Any:
    declared = find(tool)
    return declared.run(parse_arguments(declared, given), _Job(job))


def investigated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **wrong: str) -> Any:
    """Compare the right program with a wrong one, then confirm with transplants."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for side, changes in (("reference", {}), ("suspect", wrong)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(PROGRAM.format(**{**RIGHT, **changes}))
    named = {side: str(tmp_path / side) for side in ("reference", "suspect")}
    assert call("compare", "compare-0123456789ab", **named, python=sys.executable).verdict == "diverged"
    found = call("confirm_difference", "confirm-0123456789ab", comparison="compare-0123456789ab", transplant=True)
    job = tmp_path / "state" / "opguard" / "jobs" / "confirm-0123456789ab"
    job.mkdir(parents=True)
    told = {name: getattr(found, name) for name in ("outcome", "steps", "confirms", "comparison", "transplant")}
    (job / "result.json").write_text(
        json.dumps({"ended": "2026-01-01T00:00:00.000000Z", "result": told})
    )  # as the job's supervisor leaves it
    return found


def file_of(tmp_path: Path) -> Path:
    return tmp_path / "state" / "opguard" / "runs" / "confirm-0123456789ab" / "transplant.json"


def reported(tmp_path: Path) -> Any:
    """The report of a case that notes the comparison; its three forms say the same of the transplants."""
    case = open_or_resume(tmp_path, "the loss differs")[0].id
    note_job(case, "compare-0123456789ab")
    note_job(case, "confirm-0123456789ab")
    model = gather(require_case(case), "compare-0123456789ab").model
    moved = model["confirmation"]["transplant"]
    assert moved is None or all(sentence(moved) in page for page in (case_page(model), html.unescape(html_page(model))))
    return model


def rewritten(tmp_path: Path, stored: dict[str, Any], why: str) -> None:
    """A report refuses what its traces do not show."""
    file_of(tmp_path).write_text(json.dumps(stored))
    with pytest.raises(ReportRefused, match=why):
        reported(tmp_path)


def packed_and_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: dict[str, Any]) -> None:
    """Another engineer's report says the same."""
    case = open_or_resume(tmp_path, "the loss differs")[0].id
    pack(case, tmp_path / "case.zip")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "theirs"))
    opened = open_pack(tmp_path / "case.zip")
    assert gather(opened.case, "compare-0123456789ab").model["confirmation"]["transplant"] == moved


def test_two_planted_bugs_are_both_found_in_one_investigation(tmp_path, monkeypatch):
    found = investigated(tmp_path, monkeypatch, scale="(1.0 if step < 2 else 1.5)", shift="(0.5 if step < 2 else 0.25)")
    assert found.outcome == "same place"
    assert found.transplant["outcome"] == "several causes", found.transplant
    assert [place["operator"] for place in found.transplant["places"]] == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert ["net(x) *" in found.transplant["places"][0]["at"], "y +" in found.transplant["places"][1]["at"]] == [True, True]
    assert "2 places part without one following" in found.summary
    cited = [item.id for item in found.evidence]
    assert f"job:{Path(found.traces['suspect']).parents[2].name}/transplant" in cited
    assert all(resolve(one) for one in cited)
    stored = json.loads((tmp_path / "state" / "opguard" / "runs" / "confirm-0123456789ab" / "transplant.json").read_text())
    assert [cause["operator"] for cause in stored["causes"]] == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert stored["rounds"][-1]["reasons"] == ["transplanted"]
    told = reported(tmp_path)
    assert told["confirmation"]["transplant"]["outcome"] == "several causes"
    assert [place["operator"] for place in told["confirmation"]["transplant"]["places"]] == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert any("2 places part without one following" in point["text"] for point in told["confidence"])
    del stored["causes"][1]
    stored["outcome"] = "cause"  # an investigation that stopped early would have had other rounds
    rewritten(tmp_path, {**stored, "rounds": stored["rounds"][:1]}, "more replays would have been made")


@pytest.mark.usefixtures("in_this_process")
def test_one_planted_bug_is_the_cause_of_all_that_differs(tmp_path, monkeypatch):
    found = investigated(tmp_path, monkeypatch, scale="(1.0 if step < 2 else 1.5)")
    assert found.transplant["outcome"] == "cause", found.transplant
    assert len(found.transplant["places"]) == 1
    assert "all that differs there goes through that place" in found.summary
    told = reported(tmp_path)
    moved = told["confirmation"]["transplant"]
    assert (moved["outcome"], [place["operator"] for place in moved["places"]]) == ("cause", ["aten.mul.Tensor"])
    assert moved["put"] >= 1 and any("goes through that place" in point["text"] for point in told["confidence"])
    stored = json.loads(file_of(tmp_path).read_text())
    first, (*before, last) = stored["causes"][0], stored["rounds"]
    elsewhere = {**first, "operator": "aten.add.Tensor"}
    for changes, why in (
        ({"outcome": "not all"}, "transplant.outcome is 'not all'"),
        ({"outcome": "several causes", "causes": [first, elsewhere]}, "transplant.causes is"),
        ({"causes": [first, first]}, "transplant.causes is"),
        ({"causes": [elsewhere]}, "aten.add.Tensor"),
        ({"causes": [], "rounds": [], "outcome": "not possible"}, "more replays would have been made"),
        ({"rounds": [*before, {**last, "verdict": "identical"}]}, "is 'identical'"),
        ({"rounds": [*before, {**last, "verdict": None}]}, "not judged"),
        ({"rounds": [*before, {**last, "put": 999}]}, "is 999"),
        ({"rounds": [*stored["rounds"], last]}, "which nothing asked for"),
        ({"rounds": [*before, {**last, "replay": "replay-1"}]}, "is not what the replay before it asks for"),
        ({"rounds": [*before, {**last, "replay": "../elsewhere"}]}, "is not what was written"),
        ({"rounds": [*before, {name: value for name, value in last.items() if name != "replay"}]}, "is not what was written"),
        ({"rounds": 7}, "is not what was written"),
        ({"steps": [0, 900]}, "transplant.steps"),
        ({"text": "It was the optimizer."}, "transplant.text"),
    ):
        rewritten(tmp_path, {**stored, **changes}, why)
    file_of(tmp_path).unlink()
    with pytest.raises(ReportRefused, match="is gone"):
        reported(tmp_path)
    file_of(tmp_path).write_text(json.dumps(stored))
    folder = file_of(tmp_path).parent / last["replay"]
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    rewritten(tmp_path, stored, "are links")
    folder.unlink()
    (tmp_path / "moved").rename(folder)
    packed_and_opened(tmp_path, monkeypatch, moved)


@pytest.mark.usefixtures("in_this_process")
def test_an_operator_that_one_side_alone_runs_cannot_be_transplanted_and_that_is_said(tmp_path, monkeypatch):
    found = investigated(tmp_path, monkeypatch, extra=" if step < 2 else z.relu().square().mean()")
    assert found.transplant["outcome"] == "not possible", found.transplant
    assert "one side only" in found.transplant["text"]
    told = reported(tmp_path)
    assert told["confirmation"]["transplant"]["outcome"] == "not possible"
    assert any("runs on one side only" in point["text"] for point in told["confidence"])


@pytest.mark.usefixtures("in_this_process")
def test_a_batch_that_differs_is_put_right_where_it_is_first_read(tmp_path, monkeypatch):
    fed = "torch.from_numpy(numpy.random.RandomState(step{}).rand(6, 8).astype('float32'))"
    monkeypatch.setitem(
        globals(), "PROGRAM", PROGRAM.replace("import torch\n", "import numpy\nimport torch\n").replace("torch.randn(6, 8)", "{data}")
    )
    monkeypatch.setitem(RIGHT, "data", fed.format(""))
    found = investigated(tmp_path, monkeypatch, data=fed.format(" if step < 2 else step + 7"))
    assert found.pivot["origin"] == "input-data"
    assert found.transplant["outcome"] == "cause", found.transplant


@pytest.mark.usefixtures("in_this_process")
def test_another_precision_is_no_place_for_the_same_bytes(tmp_path, monkeypatch):
    found = investigated(tmp_path, monkeypatch, scale="1.0 if step < 2 else net(x).double()")
    assert found.transplant["outcome"] == "not possible", found.transplant


@pytest.mark.usefixtures("in_this_process")
def test_what_reads_another_value_is_not_called_the_place(tmp_path, monkeypatch):
    """Other results there would leave what it reads as it is, and yet all behind it would be equal."""
    monkeypatch.setitem(globals(), "PROGRAM", PROGRAM.replace("    z = y +", "    w = y * 3.0\n    z = {read} +"))
    monkeypatch.setitem(RIGHT, "read", "y")
    found = investigated(tmp_path, monkeypatch, read="(y if step < 2 else w)")
    assert (found.pivot["slot"], found.pivot["origin"]) == ("in.0", "structure")
    assert found.transplant["outcome"] == "not possible", found.transplant
    assert any("it parts before that operator" in point["text"] for point in reported(tmp_path)["confidence"])


@pytest.mark.usefixtures("in_this_process")
def test_a_fault_that_stays_away_by_chance_is_not_taken_away_by_what_was_put(tmp_path, monkeypatch):
    count, counting = counted(tmp_path, monkeypatch)
    found = investigated(tmp_path, monkeypatch, counts=counting, scale="(1.0 if step < 2 or n > 1 else 1.5)")  # compared and replayed once
    assert len(count.read_text()) == 3 and found.outcome == "same place"
    assert found.transplant["outcome"] == "not possible", found.transplant
    assert "by itself in the last replay" in found.transplant["text"]
    told = reported(tmp_path)
    assert any("by itself in the last replay" in point["text"] for point in told["confidence"])
    assert told["confirmation"]["transplant"]["put"] == 0


def test_a_run_that_ended_early_does_not_end_the_search(tmp_path, monkeypatch):
    """It did not show all executions of the place; the next one does."""
    count, counting = counted(tmp_path, monkeypatch)
    monkeypatch.setitem(
        globals(), "PROGRAM", PROGRAM.replace("    x =", "    if n == 2 and step == 3:\n        raise SystemExit(7)\n    x =")
    )
    found = investigated(tmp_path, monkeypatch, counts=counting, scale="(1.0 if step < 2 else 1.5)")
    assert found.transplant["outcome"] == "cause", found.transplant
    assert len(count.read_text()) == 2 + found.transplant["replays"] > 4
    assert reported(tmp_path)["confirmation"]["transplant"]["outcome"] == "cause"


@pytest.mark.usefixtures("in_this_process")
def test_a_replay_that_cannot_be_judged_is_said_to_be_that(tmp_path, monkeypatch):
    from opguard_harness.compare import transplant

    monkeypatch.setattr(transplant, "is_equal", lambda answer: False)  # as if something of it had not been observed
    found = investigated(tmp_path, monkeypatch, scale="(1.0 if step < 2 else 1.5)")
    assert found.transplant["outcome"] == "not judged", found.transplant
    assert "could not be judged" in found.summary and "something still differs" not in found.summary
    assert reported(tmp_path)["confirmation"]["transplant"]["outcome"] == "not judged"


@pytest.mark.usefixtures("in_this_process")
def test_all_replays_count_and_the_newest_transplants_are_told(tmp_path, monkeypatch):
    found = investigated(tmp_path, monkeypatch, scale="(1.0 if step < 2 else 1.5)")
    jobs = tmp_path / "state" / "opguard" / "jobs"
    again = call("confirm_difference", "confirm-00000000000a", comparison="compare-0123456789ab")
    told = {name: getattr(again, name) for name in ("outcome", "steps", "confirms", "comparison", "transplant")}
    (jobs / "confirm-00000000000a").mkdir()
    for ended in ("2025-01-01T00:00:00.000000Z", "2027-01-01T00:00:00.000000Z"):
        (jobs / "confirm-00000000000a" / "result.json").write_text(json.dumps({"ended": ended, "result": told}))
        model = reported(tmp_path)
        newest = "confirm-00000000000a" if ended > "2026" else "confirm-0123456789ab"
        assert newest in model["confirmation"]["id"]
        assert model["confirmation"]["replays"] == {"same place": 2}
        assert model["confirmation"]["transplant"]["outcome"] == found.transplant["outcome"] == "cause"
    (jobs / "confirm-00000000000a" / "result.json").write_text(json.dumps({"ended": "", "result": {**told, "steps": [0, 900]}}))
    with pytest.raises(ReportRefused, match=r"its traces recorded \[1, 4\]"):
        reported(tmp_path)


def counted(tmp_path, monkeypatch):
    """Lets the suspect know how often it has run, from 0, as ``n``; the file that says it, and the lines that the suspect begins with."""
    count = tmp_path / "count"
    count.write_text("")
    monkeypatch.setitem(globals(), "PROGRAM", PROGRAM.replace("import torch\n", "{counts}import torch\n", 1))
    monkeypatch.setitem(RIGHT, "counts", "n = 9\n")
    return count, f"import pathlib\ncount = pathlib.Path({str(count)!r})\nn = len(count.read_text())\ncount.write_text('x' * (n + 1))\n"
