# ruff: noqa: E402  (torch may be missing)
"""Knobs are applied when asked for and not otherwise, and what cannot be applied is said."""

import json

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.contract.knobs import KNOBS, Knob, launch_environment
from opguard_core.determinism import apply
from opguard_harness.__main__ import main
from tests.support.fake_training import fake_program, fake_python
from tests.support.harmless import both_ways, differences

PROGRAM = f"""
import os
import torch
print([(name, os.environ.get(name)) for name in {sorted(launch_environment())}])
print(torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory)
print([(name, getattr(torch.backends.cudnn, name)) for name in ("deterministic", "benchmark")], torch.backends.mkldnn.deterministic)
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
layer(torch.ones(1, 2)).sum().backward()
optimizer.step()
"""


def test_nothing_is_applied_without_the_flag(tmp_path):
    bare, observed = both_ways(tmp_path, {"train.py": PROGRAM}, ["python", "train.py"], options={"mode": "full"})
    assert bare.status == 0, bare.stderr
    assert differences(bare, observed) == []
    contract = observed.rank_manifest(0)["contract"]
    assert contract["run.deterministic"] is False
    assert not [key for key in contract if key.startswith("knobs")]


def test_a_knob_that_cannot_be_set_is_reported_and_creates_nothing(monkeypatch):
    unknown = Knob("torch.backends.cudnn.no_such_setting", True, "Why.", "Nowhere", "rank")
    monkeypatch.setattr(apply, "KNOBS", (unknown,))
    report = apply.apply_in_rank()[unknown.name]
    assert set(report) == {"not_applied"}
    assert "no_such_setting" in report["not_applied"]
    assert not hasattr(torch.backends.cudnn, "no_such_setting")


def test_the_answer_shows_before_and_after_and_the_command_says_what_does_not_hold(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    rank = {knob.name: {"before": None, "after": knob.value} for knob in KNOBS if knob.when == "rank"}
    launch = {knob.name: {"before": None, "after": knob.value} for knob in KNOBS if knob.when == "launch"}
    contract = {"run.deterministic": True, "knobs.rank": rank, "knobs.launch": launch}
    broken = {**contract, "knobs.launch": {**launch, "NCCL_ALGO": {"before": "Tree", "after": "Tree"}}}
    fake_program(tmp_path / "a", contract=contract)
    fake_program(tmp_path / "b", contract=broken)
    words = ["--reference", str(tmp_path / "a"), "--suspect", str(tmp_path / "b"), "--out", str(tmp_path / "out")]
    main(["compare", "--json", "--deterministic", "--python", str(fake_python(tmp_path / "bin")), *words])
    printed = capsys.readouterr()
    answer = json.loads(printed.out)
    assert [knob["name"] for knob in answer["determinism"]["reference"]] == [knob.name for knob in KNOBS]
    told = {knob["name"]: knob for knob in answer["determinism"]["suspect"]}
    assert (told["NCCL_ALGO"]["before"], told["NCCL_ALGO"]["after"]) == ("Tree", "Tree")
    said = [line for line in printed.err.splitlines() if line.startswith("note: --deterministic")]
    assert said == ["note: --deterministic: suspect: NCCL_ALGO is not Ring: the environment had set it otherwise, which was left"]
