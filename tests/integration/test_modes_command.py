"""Modes through the shell: a sentinel finds the step and its replay the place; a narrow replay decides what a mode left open."""

import json
import os
import subprocess
import sys

import pytest

from tests.support.fake_training import REPOSITORY
from tests.support.small_gpt import FAULTY_EXPRESSION, write_program

pytestmark = [pytest.mark.torch, pytest.mark.full, pytest.mark.timeout(900)]

STEPS, FAULT, LAYERS = 200, 180, 8
MAX_SHARE = 0.05

POKED = """import ctypes

import torch
from torch import nn
from torch.nn import functional as F

FAULT = {fault}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x, step):
        hidden = F.gelu(self.up(x))
        if step == FAULT:
            ctypes.cast(hidden.untyped_storage().data_ptr(), ctypes.POINTER(ctypes.c_float))[0] += 1.0
        return self.down(self.norm(hidden))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(6):
    x = torch.randn(4, 8)
    (model(x, step) - x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

RANKS = """import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULT = {fault}

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(8):
    x = torch.randn(4, 8, generator=generator)
    scale = 1.5 if step == FAULT and dist.get_rank() == 1 else 1.25
    loss = (model(x) - x).square().mean()
    scaled = loss * scale
    scaled.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.fixture
def compare(tmp_path):
    """Run the command; return the answer."""
    environment = {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }

    def run(*words, code):
        options = [
            "--reference",
            tmp_path / "a",
            "--suspect",
            tmp_path / "b",
            "--out",
            tmp_path / "out",
            "--python",
            sys.executable,
            "--json",
        ]
        command = [sys.executable, "-m", "opguard_harness", "compare", *options, *words]
        done = subprocess.run(list(map(str, command)), cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert not list((tmp_path / "cache").rglob("pristine-*")), "private copies are removed"
        return json.loads(done.stdout)

    return run


def write(tmp_path, source):
    for name, fault in (("a", None), ("b", 4)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(source.replace("{fault}", repr(fault)))


def size(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_difference_in_step_180_of_200_is_found_with_a_trace_below_5_percent_of_the_full_one(tmp_path, compare):
    write_program(tmp_path / "a", steps=STEPS, layers=LAYERS)
    write_program(tmp_path / "b", steps=STEPS, layers=LAYERS, fault=FAULT)
    answer = compare("--mode", "sentinel", code=1)
    pivot, located = answer["pivot"], answer["located"]
    assert (pivot["step"], pivot["suspect"]["text"], pivot["origin"], pivot["operator"]) == (
        FAULT,
        FAULTY_EXPRESSION,
        "argument",
        "aten.mul.Tensor",
    )
    assert (located["step"], located["replay"]["steps"], answer["mode"]) == (FAULT, [FAULT - 1, FAULT + 1], "verify")
    core = [sys.executable, str(REPOSITORY / "opguard_core"), "run", "--out", str(tmp_path / "full"), "--mode", "full", "--"]
    subprocess.run([*core, sys.executable, "train.py"], cwd=tmp_path / "b", check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    small = size(tmp_path / "out" / "suspect" / "trace") + size(tmp_path / "out" / "replay-1" / "suspect" / "trace")
    whole = size(tmp_path / "full")
    print(f"sentinel and window: {small} bytes, full: {whole} bytes, {small / whole:.2%}")
    assert small < MAX_SHARE * whole


def test_a_program_that_agrees_with_itself_is_identical_over_its_states(tmp_path, compare):
    write_program(tmp_path / "a", steps=4)
    write_program(tmp_path / "b", steps=4)
    answer = compare("--mode", "sentinel", code=0)
    assert answer["compared"]["boundaries"] == "the state at the end of each step only"
    assert answer["compared"]["steps"] == [0, 1, 2, 3, 4]
    assert not list((tmp_path / "out").glob("replay-*"))


@pytest.mark.parametrize("mode", ["full", "trusted"])
def test_a_narrow_replay_tells_a_silent_write_from_an_operator(tmp_path, compare, mode):
    write(tmp_path, POKED)
    answer = compare("--mode", mode, "--narrow", code=1)
    assert answer["narrow"]["first"]["origin_alternatives"][-1] == "mutated"
    assert answer["narrow"]["mode"] == mode
    assert (answer["pivot"]["origin"], answer["pivot"]["suspect"]["text"]) == ("mutated", "self.norm(hidden)")
    assert (answer["pivot"]["step"], answer["narrow"]["same_place"]) == (4, True)


def test_a_sentinel_locates_the_step_of_two_ranks_and_the_replay_names_the_rank(tmp_path, compare):
    write(tmp_path, RANKS)
    answer = compare("--mode", "sentinel", "--", "torchrun", "--nproc-per-node", "2", "train.py", code=1)
    assert answer["located"]["step"] == 4
    assert answer["compared"]["ranks"] == [0, 1]
    pivot = answer["pivot"]
    assert (pivot["rank"], pivot["step"], pivot["suspect"]["text"], pivot["origin"]) == (1, 4, "loss * scale", "argument")
