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
from opguard_harness.report.page.damage import cause
from opguard_harness.report.progress import Silent
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
    told = {"outcome": found.outcome, "steps": found.steps, "confirms": found.confirms, "comparison": found.comparison}
    (job / "result.json").write_text(json.dumps({"result": told}))  # as the job's supervisor leaves it
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
    assert moved is None or all(cause(moved) in page for page in (case_page(model), html.unescape(html_page(model))))
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
    assert [cause["operator"] for cause in found.transplant["causes"]] == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert ["net(x) *" in found.transplant["causes"][0]["at"], "y +" in found.transplant["causes"][1]["at"]] == [True, True]
    assert "2 places differ by themselves" in found.summary
    cited = [item.id for item in found.evidence]
    assert f"job:{Path(found.traces['suspect']).parents[2].name}/transplant" in cited
    assert all(resolve(one) for one in cited)
    stored = json.loads((tmp_path / "state" / "opguard" / "runs" / "confirm-0123456789ab" / "transplant.json").read_text())
    assert [cause["operator"] for cause in stored["causes"]] == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert stored["rounds"][-1]["reasons"] == ["transplanted"]
    told = reported(tmp_path)
    assert told["confirmation"]["transplant"]["outcome"] == "several causes"
    assert [place["operator"] for place in told["confirmation"]["transplant"]["places"]] == ["aten.mul.Tensor", "aten.add.Tensor"]
    assert any("2 places differ by themselves" in point["text"] for point in told["confidence"])
    del stored["causes"][1]
    stored["outcome"] = "cause"  # an investigation that stopped early would have had other rounds
    rewritten(tmp_path, {**stored, "rounds": stored["rounds"][:1]}, "do not")


def test_one_planted_bug_is_the_cause_of_all_that_differs(tmp_path, monkeypatch):
    in_this_process(monkeypatch)
    found = investigated(tmp_path, monkeypatch, scale="(1.0 if step < 2 else 1.5)")
    assert found.transplant["outcome"] == "cause", found.transplant
    assert len(found.transplant["causes"]) == 1
    assert "that was the cause" in found.summary
    told = reported(tmp_path)
    moved = told["confirmation"]["transplant"]
    assert (moved["outcome"], [place["operator"] for place in moved["places"]]) == ("cause", ["aten.mul.Tensor"])
    assert moved["put"] >= 1 and any("nothing else differs by itself" in point["text"] for point in told["confidence"])
    stored = json.loads(file_of(tmp_path).read_text())
    elsewhere = {**stored["causes"][0], "operator": "aten.add.Tensor"}
    for changes, why in (
        ({"outcome": "not all"}, "are said to show not all"),
        ({"outcome": "several causes", "causes": [stored["causes"][0], elsewhere]}, "in none of its traces"),
        ({"causes": [elsewhere]}, "in none of its traces"),
        ({"rounds": [{**stored["rounds"][-1], "verdict": "identical"}]}, "are said to have given identical"),
        ({"rounds": [{**stored["rounds"][-1], "replay": "../elsewhere"}]}, "is not what was written"),
        ({"rounds": 7}, "is not what was written"),
    ):
        rewritten(tmp_path, {**stored, **changes}, why)
    file_of(tmp_path).write_text(json.dumps(stored))
    packed_and_opened(tmp_path, monkeypatch, moved)


def test_an_operator_that_one_side_alone_runs_cannot_be_transplanted_and_that_is_said(tmp_path, monkeypatch):
    in_this_process(monkeypatch)
    found = investigated(tmp_path, monkeypatch, extra=" if step < 2 else z.relu().square().mean()")
    assert found.transplant["outcome"] == "not possible", found.transplant
    assert "one side only" in found.transplant["text"]
    assert reported(tmp_path)["confirmation"]["transplant"]["outcome"] == "not possible"


def test_a_batch_that_differs_is_put_right_where_it_is_first_read(tmp_path, monkeypatch):
    in_this_process(monkeypatch)
    fed = "torch.from_numpy(numpy.random.RandomState(step{}).rand(6, 8).astype('float32'))"
    monkeypatch.setitem(
        globals(), "PROGRAM", PROGRAM.replace("import torch\n", "import numpy\nimport torch\n").replace("torch.randn(6, 8)", "{data}")
    )
    monkeypatch.setitem(RIGHT, "data", fed.format(""))
    found = investigated(tmp_path, monkeypatch, data=fed.format(" if step < 2 else step + 7"))
    assert found.pivot["origin"] == "input-data"
    assert found.transplant["outcome"] == "cause", found.transplant


def test_another_precision_is_no_place_for_the_same_bytes(tmp_path, monkeypatch):
    in_this_process(monkeypatch)
    found = investigated(tmp_path, monkeypatch, scale="1.0 if step < 2 else net(x).double()")
    assert found.transplant["outcome"] == "not possible", found.transplant


def in_this_process(monkeypatch):
    """Run the programs without a process for each."""
    from opguard_harness.compare import confirm, pipeline
    from tests.support import inside

    monkeypatch.setattr(confirm, "run_all", inside.run_all)
    monkeypatch.setattr(pipeline, "run_all", inside.run_all)
