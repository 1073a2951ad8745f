"""One investigation by transplants: a planted bug is the cause of all that differs, two planted bugs are both found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.registry import find
from opguard_harness.report.progress import Silent
from opguard_harness.workspace.facts import resolve

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
    return call("confirm_difference", "confirm-0123456789ab", comparison="compare-0123456789ab", transplant=True)


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


def test_one_planted_bug_is_the_cause_of_all_that_differs(tmp_path, monkeypatch):
    in_this_process(monkeypatch)
    found = investigated(tmp_path, monkeypatch, scale="(1.0 if step < 2 else 1.5)")
    assert found.transplant["outcome"] == "cause", found.transplant
    assert len(found.transplant["causes"]) == 1
    assert "that was the cause" in found.summary


def test_an_operator_that_one_side_alone_runs_cannot_be_transplanted_and_that_is_said(tmp_path, monkeypatch):
    in_this_process(monkeypatch)
    found = investigated(tmp_path, monkeypatch, extra=" if step < 2 else z.relu().square().mean()")
    assert found.transplant["outcome"] == "not possible", found.transplant
    assert "one side only" in found.transplant["text"]


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
