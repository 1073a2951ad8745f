"""Planted faults of known damage, compared and confirmed: the bytes that differ are described exactly, and rebuilt by repro.py."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opguard_core.evidence.refs import parse
from opguard_core.ids import SIDES
from opguard_core.trace.kept import read_kept
from opguard_harness.cli.app import dispatch
from opguard_harness.compare import confirm as confirming
from opguard_harness.compare import pipeline
from opguard_harness.config import runs_dir
from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.registry import find
from opguard_harness.report.progress import Silent
from opguard_harness.workspace.facts import resolve

pytestmark = [pytest.mark.torch, pytest.mark.full]

CASES = Path(__file__).resolve().parents[1] / "cases"
CONFIRM = "confirm-0123456789ab"

PROGRAM = """
import torch

{functions}

torch.manual_seed(0)
net = torch.nn.Linear(8, 64)
head = torch.nn.Linear(64, 4)
opt = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
for step in range(3):
    x = torch.randn(48, 8)
    h = mixed(net(x), step)
    loss = head(h).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""

EQUAL = """
def mixed(x, step):
    return torch.mul(x, 0.75)
"""

# Memory that changes under an operator's result, as failing hardware would do it.
CHANGED = """
class Changed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, step):
        out = torch.mul(x, 0.75)
        if step == 1:
            view = out.numpy(){view}
            {change}
        return out

    @staticmethod
    def backward(ctx, gradient):
        return torch.mul(gradient, 0.75), None

def mixed(x, step):
    return Changed.apply(x, step)
"""
ONE_BIT = CHANGED.format(view='.view("uint32")', change="view[2, 5] ^= 1 << 21")
TWO_ROWS = CHANGED.format(view="", change="view[[1, 4]] = view[[4, 1]]")

ROW_MAJOR = """
def mixed(x, step):
    return torch.mul(x, torch.sum(torch.mul(x, 1.5), dim=0))
"""
# The same values laid out column by column: a sum over them adds in another order.
COLUMN_MAJOR = """
def mixed(x, step):
    scaled = torch.mul(x, 1.5)
    if step == 1:
        scaled = torch.empty_strided(x.shape, (1, x.shape[0])).copy_(scaled)
    return torch.mul(x, torch.sum(scaled, dim=0))
"""
CAST = """
def mixed(x, step):
    out = torch.mul(x, 0.75)
    return out.to(torch.bfloat16).to(torch.float32) if step == 1 else out
"""


class _Job(Silent):
    def __init__(self, job: str) -> None:
        super().__init__()
        self.job = job


def call(tool: str, job: str = "", **given: Any) -> Any:
    declared = find(tool)
    arguments = parse_arguments(declared, given)
    return declared.run(arguments, _Job(job)) if job else declared.run(arguments)


@pytest.fixture
def confirmed(tmp_path, monkeypatch):
    """Compare two folders and confirm that, in this process."""
    from tests.support.inside import run_all

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module in (pipeline, confirming):
        monkeypatch.setattr(module, "run_all", run_all)
        monkeypatch.setattr(module, "find", lambda python: type("Found", (), {"path": sys.executable, "untested": lambda self: ""})())

    def run(reference: Path, suspect: Path, **given: Any) -> Any:
        compared = call("compare", "compare-0123456789ab", reference=str(reference), suspect=str(suspect), **given)
        assert compared.verdict == "diverged", compared.summary
        return call("confirm_difference", CONFIRM, comparison="compare-0123456789ab")

    return run


@pytest.fixture
def planted(tmp_path, confirmed):
    def run(suspect: str, reference: str = EQUAL) -> Any:
        folders = []
        for side, functions in (("reference", reference), ("suspect", suspect)):
            folder = tmp_path / side
            folder.mkdir()
            (folder / "train.py").write_text(PROGRAM.format(functions=functions))
            folders.append(folder)
        return confirmed(*folders)

    return run


def stored(name: str = "damage.json") -> dict[str, Any]:
    value: dict[str, Any] = json.loads((runs_dir() / CONFIRM / name).read_text())
    return value


def damage() -> dict[str, Any]:
    """What is stored of the slot that stands for the difference; both sides were fingerprinted again."""
    found = stored()
    main = next(slot for slot in found["slots"] if slot["slot"] == found["main"])
    assert [check["equal"] for check in main["fingerprints"].values()] == [True, True]
    assert {tuple(check["mix64"]) for check in main["fingerprints"].values()} == {("oracle",)}
    return {"slot": main["slot"], **main["damage"]}


def repeated() -> dict[str, Any]:
    from tests.support.inside import repeated

    return repeated(runs_dir() / CONFIRM / "repro.py")


def call_shell(*words: str) -> str:
    """The program that the shell command names."""
    said: str = json.loads(dispatch([*words, "--json"]).text)["script"]
    return said


def test_one_bit_in_one_element(planted, tmp_path):
    result = planted(ONE_BIT)
    assert (result.outcome, result.pivot["origin"], result.pivot["step"]) == ("same place", "mutated", 1)
    found = damage()
    assert (found["likely"], found["differing"], found["elements"]) == ("single bit", 1, 48 * 64)
    assert found["first"][0]["index"] == [2, 5]
    assert found["bits"]["flipped"] == [{"bit": 21, "is": "mantissa", "count": 1}]
    assert found["distance"]["max"] == 1 << 21
    left, right = (int(found["first"][0][f"{side}_bits"], 16) for side in ("reference", "suspect"))
    assert left ^ right == 1 << 21
    assert result.damage["class"] == "single bit"
    assert "damage: single bit, 1 of 3072 elements, at most 2097152 ULP apart" in result.summary
    for item in result.evidence:
        assert resolve(item.id).kind in ("boundary", "artefact")
    assert {parse(item.id).artefact for item in result.evidence if item.id.startswith("job:")} == {"damage", "kept", "repro"}
    assert call("get_evidence", id=f"job:{CONFIRM}/damage").fact["artefact"] == "damage"
    facts = repeated()
    assert facts["conclusion"] == "cause before"
    assert facts["differs"] == ["inputs"]
    # Torch alone: isolated from PYTHONPATH and the current folder, so nothing of OpGuard can be imported.
    script = call_shell("repro", result.evidence[0].id.removesuffix("/out.0"), "--out", str(tmp_path / "bug"))
    done = subprocess.run([sys.executable, "-I", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert (
        "100 runs from the suspect's inputs: reference's bits 0, suspect's bits 100, other bits 0; disagrees with itself in 0 of 100"
        in done.stdout
    )
    assert "given differently: inputs" in done.stdout
    assert "Reproduced: the operator agrees with itself; each side's bits come from its own inputs." in done.stdout


def test_two_rows_swapped(planted):
    result = planted(TWO_ROWS)
    found = damage()
    assert (result.outcome, found["likely"], found["differing"]) == ("same place", "permutation", 128)
    assert found["order"]["text"] == "rows 1 and 4 are swapped"
    assert found["order"]["from"] == [[1, 4], [4, 1]]
    assert found["axes"][0]["ranges"] == [[1, 1], [4, 4]]
    assert found["axes"][1]["touched"] == 64


def test_a_reduction_in_another_order(planted):
    result = planted(COLUMN_MAJOR, ROW_MAJOR)
    found = damage()
    assert (result.outcome, found["slot"], found["likely"], found["elements"]) == ("same place", "out.0", "reduction order", 64)
    files = stored("kept.json")["files"]
    kept = {side: read_kept(runs_dir() / CONFIRM / facts["file"]) for side, facts in files.items()}
    assert kept["reference"].slots["in.0"].data == kept["suspect"].slots["in.0"].data
    assert kept["reference"].known["in.0"].strides != kept["suspect"].known["in.0"].strides
    codes = [np.frombuffer(kept[side].slots["out.0"].data, np.int32).astype(np.int64) for side in SIDES]
    apart = np.abs(codes[0] - codes[1])
    assert (found["differing"], found["distance"]["max"]) == (np.count_nonzero(apart), apart.max())
    assert sum(bucket["count"] for bucket in found["distance"]["histogram"]) == found["differing"]
    assert "memory layout" in (facts := repeated())["differs"]
    assert facts["conclusion"] == "cause before"
    assert all(side["gives"][name] == 100 for name, side in facts["sides"].items())


def test_a_cast_that_one_side_alone_makes(planted):
    result = planted(CAST)
    assert (result.outcome, result.pivot["origin"]) == ("same place", "dtype")
    assert result.damage["only"] == "suspect"
    assert (result.damage["class"], "rounding its in.0 to bfloat16 gives" in result.damage["rule"]) == ("cast", True)
    assert stored()["effect"]["damage"]["dtypes"] == ["float32", "bfloat16"]
    assert repeated()["conclusion"] == "one side"


REAL = {
    "checkpoint-counts-calls": ["arguments"],
    "gradient-reversal-sign": ["arguments"],
    "chunked-loss-sum-of-means": ["inputs"],
    "clip-per-parameter": ["inputs"],
    "eval-draws-from-train-generator": ["generator state"],
}
"""Cases, and what of the first difference is given differently on both sides."""


@pytest.mark.parametrize("case", REAL)
def test_the_differing_bytes_of_real_cases_are_reproduced_every_time(case, confirmed, tmp_path):
    folders = [shutil.copytree(CASES / case / side, tmp_path / side) for side in SIDES]
    result = confirmed(*folders)
    assert (result.outcome, result.repro) == ("same place", "")
    facts = repeated()
    assert len(set(facts["recorded"].values())) == 2
    assert (facts["conclusion"], facts["differs"]) == ("cause before", REAL[case])
    for side, counts in facts["sides"].items():
        assert (counts["runs"], counts["gives"][side], counts["disagrees"]) == (100, 100, 0)
