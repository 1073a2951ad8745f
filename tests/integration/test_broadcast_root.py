"""What a rank broadcasts it reads: the other bytes are told where they are made, on that rank, and no hardware is suspected."""

from __future__ import annotations

import sys

import pytest

from opguard_harness.interface.parsing import parse_arguments
from opguard_harness.registry import find
from opguard_harness.report.progress import Silent
from opguard_harness.workspace.stored import answer_of

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.full, pytest.mark.timeout(300)]

PROGRAM = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
first, second = torch.randn(4).exp(), torch.randn(4).exp()
before = torch.full((4,), float(dist.get_rank()))
sent = {sent} if dist.get_rank() == 1 else {received}
dist.broadcast(sent, 1)
(model(sent) * second).sum().backward()
opt.step()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [({"sent": "second.clone()"}, "diverged"), ({"received": "before * 3"}, "identical")],  # what a receiver held cannot matter
)
def test_the_root_reads_and_the_others_do_not(tmp_path, monkeypatch, wrong, verdict):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for side, changes in (("reference", {}), ("suspect", wrong)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(PROGRAM.format(**{"sent": "first", "received": "before", **changes}))
    declared = find("compare")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "127.0.0.1:0",
        "train.py",
    ]
    named = {side: str(tmp_path / side) for side in ("reference", "suspect")}
    found = answer_of(declared.run(parse_arguments(declared, {**named, "command": command}), Silent()).comparison)
    assert found["verdict"] == verdict, (found["pivot"], found["reasons"])
    if verdict == "diverged":
        pivot = found["pivot"]
        assert (pivot["rank"], pivot["operator"].split(".")[1], pivot["origin"]) == (1, "broadcast_", "structure")
        made = [
            near[side]["text"] for near in pivot["near"] for side in ("reference", "suspect") if near["what"] == "producer" and near[side]
        ]
        assert made == ["torch.randn(4).exp()", "second.clone()"]
