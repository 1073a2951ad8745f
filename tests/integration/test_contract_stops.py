# ruff: noqa: E402  (torch may be missing)
"""A real program that never ends by itself is ended at its first step when its settings cannot give the reference's bits."""

import json

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.full]

import sys

from opguard_harness.__main__ import main

TRAIN = """
import sys
import torch

torch.manual_seed(0)
torch.set_float32_matmul_precision(sys.argv[1])
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
step = 0
while step < 2 or sys.argv[2] == "forever":
    layer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    step += 1
"""


def test_the_suspect_is_ended_while_it_runs_and_the_setting_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(TRAIN)
    words = ["--reference", str(tmp_path / "a"), "--suspect", str(tmp_path / "b"), "--out", str(tmp_path / "out")]
    words += ["--reference-args", "highest once", "--suspect-args", "high forever", "--timeout", "110", "--stop-on-contract"]
    assert main(["compare", "--json", "--python", sys.executable, *words]) == 2
    printed = capsys.readouterr()
    error = json.loads(printed.out)["error"]
    assert error["slug"] == "contract-stopped"
    assert "flags.float32_matmul_precision: reference highest, suspect high (arithmetic)" in error["text"]
    assert "warning: contract: flags.float32_matmul_precision: reference highest, suspect high (arithmetic)" in printed.err.splitlines()
