"""Two real programs are compared, then confirmed in private copies: what is in the code comes again, at the same place."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.registry import find
from opguard_harness.report.progress import Silent
from opguard_harness.workspace.facts import resolve

pytestmark = [pytest.mark.torch, pytest.mark.full]

PROGRAM = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(6, 8)
    loss = net(x).square().mean() * {scale}
    opt.zero_grad()
    loss.backward()
    opt.step()
    open("left-behind.txt", "a").write(f"{{step}}\\n")
"""


class _Job(Silent):
    def __init__(self, job: str) -> None:
        super().__init__()
        self.job = job


def call(tool: str, job: str, **given: Any) -> Any:
    declared = find(tool)
    return declared.run(parse_arguments(declared, given), _Job(job))


def test_a_difference_in_the_code_is_confirmed_in_private_copies(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders: dict[str, Path] = {}
    for side, scale in (("reference", "1.0"), ("suspect", "(1.0 if step < 2 else 0.5)")):
        folders[side] = tmp_path / side
        folders[side].mkdir()
        (folders[side] / "train.py").write_text(PROGRAM.format(scale=scale))
    named = {side: str(folder) for side, folder in folders.items()}
    compared = call("compare", "compare-0123456789ab", **named, python=sys.executable)
    assert compared.verdict == "diverged"
    before = {folder: sorted(path.name for path in folder.iterdir()) for folder in folders.values()}
    lines = {folder: (folder / "left-behind.txt").read_text() for folder in folders.values()}

    confirmed = call("confirm_difference", "confirm-0123456789ab", comparison="compare-0123456789ab")

    assert (confirmed.outcome, confirmed.verdict) == ("same place", "diverged")
    assert confirmed.pivot["step"] == 2
    for folder in folders.values():
        assert sorted(path.name for path in folder.iterdir()) == before[folder]
        assert (folder / "left-behind.txt").read_text() == lines[folder]
    for item in confirmed.evidence:
        assert resolve(item.id, confirmed.comparison).kind in ("boundary", "artefact")
    told = {key: confirmed.damage[key] for key in ("slot", "class", "differing", "elements")}
    assert told == {"slot": "out.0", "class": "unknown", "differing": 1, "elements": 1}, "one number shows no pattern"
