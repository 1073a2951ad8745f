"""Keeping and transplanting through the launcher: harmless, on several ranks, and with clear ends where it cannot be done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest

from opguard_core.plan.command import launch_argv
from opguard_core.plan.keeping import Keep, Transplant, kept_file, save_transplants
from opguard_core.trace.boundary import BoundaryKey, key_of
from opguard_core.trace.kept import read_kept
from opguard_core.trace.reader import Run
from tests.support.harmless import both_ways, differences

pytestmark = [pytest.mark.torch, pytest.mark.full]

TRAIN = """
    import random, sys, threading
    import numpy
    import torch

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        batch = torch.randn(3, 4) + torch.from_numpy(numpy.random.rand(3, 4)).float() * 0
        loss = model(batch).square().mean() * 1.0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sys.stdout.write(f"{step} {loss.item().hex()} {optimizer.param_groups[0]['params'][0]._version}\\n")
    print(torch.get_rng_state().sum(), random.random() < 2)
"""


def launch(folder, name, source, *argv, **options):
    """Run a program under capture; returns what came of it and the run's folder."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(source)
    out = folder.parent / name
    words = launch_argv(sys.executable, out, [*(argv or (sys.executable,)), "train.py"], mode="verify", **options)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("OPGUARD", "PYTHON"))}
    done = subprocess.run(words, cwd=folder, env={**env, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    return done, out


def keys_of_rank(out, rank, wanted):
    trace = Run.open(out).ranks[rank]
    events = (trace.event_at(seq)[0] for seq in range(trace.num_events))
    return [key_of(trace, rank, event.seq) for event in events if event.kind in ("operator", "collective") and wanted(event)]


def test_keeping_everything_of_a_step_is_not_noticed_by_the_program(tmp_path):
    source = textwrap.dedent(TRAIN)
    done, out = launch(tmp_path / "program", "keys", source)
    assert done.returncode == 0, done.stderr
    keys = keys_of_rank(out, 0, lambda event: event.window == 1)
    assert len(keys) > 20
    Keep(tuple(keys)).save(tmp_path / "keep.json")
    work = tmp_path / "work"
    work.mkdir()
    bare, observed = both_ways(work, {"train.py": source}, ["python", "train.py"], options={"keep": tmp_path / "keep.json"})
    assert differences(bare, observed) == []
    manifest = observed.rank_manifest(0)
    assert manifest["coverage"]["gaps"] == {}
    assert [set(manifest["kept"][kept_file(i)]) for i in range(len(keys))] == [{"seq", "seal", "left_out"}] * len(keys)
    assert all(read_kept(observed.trace / "rank-00000" / kept_file(i)).boundary == key for i, key in enumerate(keys))
    assert "transplant" not in manifest["contract"]


RANKS = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(2):
    loss = layer(torch.ones(1, 2) * (rank + step + 1)).sum() * {scale}
    optimizer.zero_grad()
    loss.backward()
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
torch.save(layer.state_dict(), f"{{rank}}.pt")
dist.destroy_process_group()
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")


@pytest.fixture(scope="module")
def kept_ranks(tmp_path_factory):
    """Two ranks whose collectives and scaled losses are kept: the keys, and the boundaries' files."""
    folder = tmp_path_factory.mktemp("ranks")
    done, out = launch(folder / "reference", "keys", RANKS.format(scale="1.0"), *TORCHRUN)
    assert done.returncode == 0, done.stderr
    wanted = lambda event: event.operator.startswith("c10d.allreduce_") or _scaled(event)  # noqa: E731
    keys = [key for rank in (1, 0) for key in keys_of_rank(out, rank, wanted)]
    Keep(tuple(keys)).save(folder / "keep.json")
    done, out = launch(folder / "reference", "kept", RANKS.format(scale="1.0"), *TORCHRUN, keep=folder / "keep.json")
    assert done.returncode == 0, done.stderr
    return folder, {key: out / f"rank-{key.rank:05d}" / kept_file(index) for index, key in enumerate(keys)}


@pytest.mark.timeout(300)
def test_each_rank_keeps_its_own_boundaries_and_results_of_collectives_are_kept_when_they_arrive(kept_ranks):
    boundaries = {key: read_kept(path) for key, path in kept_ranks[1].items()}
    assert all(boundary.boundary == key for key, boundary in boundaries.items())
    sums = [[boundary for key, boundary in boundaries.items() if key.rank == rank and key.phase == "collective"] for rank in (0, 1)]
    assert [len(side) for side in sums] == [4, 4]
    for left, right in zip(*sums, strict=True):
        before = [np.frombuffer(side.slots["in.0.0"].data, np.float32) for side in (left, right)]
        after = [np.frombuffer(side.slots["mut.0.0"].data, np.float32) for side in (left, right)]
        assert after[0].tolist() == after[1].tolist() == (before[0] + before[1]).tolist()


@pytest.mark.timeout(300)
def test_a_transplant_in_both_ranks_takes_a_bug_of_both_out(kept_ranks):
    import torch

    folder, kept = kept_ranks
    scale = "(1.0 if step == 0 else 3.0)"
    loss = "layer(torch.ones(1, 2) * (rank + step + 1)).sum()"
    scaled = {key: path for key, path in kept.items() if key.operator == "aten.mul.Tensor"}
    assert sorted((key.rank, key.phase) for key in scaled) == [(rank, phase) for rank in (0, 1) for phase in ("backward", "forward")]
    texts = {f"{loss} * 1.0": f"{loss} * {scale}"}
    asked = [Transplant(replace(key, text=texts.get(key.text, key.text)), path) for key, path in scaled.items()]
    save_transplants(folder / "transplant.json", asked)
    done, out = launch(folder / "suspect", "healed", RANKS.format(scale=scale), *TORCHRUN, transplant=folder / "transplant.json")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        manifest = json.loads((out / f"rank-{rank:05d}" / "manifest.json").read_text())
        assert [entry["done"] for entry in manifest["transplanted"]] == [True, True]
        assert [entry["changed"] for entry in manifest["transplanted"]] == [["out.0"], ["out.0"]]
        assert len(manifest["contract"]["transplant"]) == 4
        states = [torch.load(folder / side / f"{rank}.pt") for side in ("reference", "suspect")]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def _scaled(event):
    """The product with the scale in step 1, and its backward."""
    return event.window == 1 and event.operator == "aten.mul.Tensor" and event.phase in ("forward", "backward")


def test_a_transplant_that_does_not_fit_or_finds_no_place_ends_in_a_clear_error(tmp_path):
    source = textwrap.dedent(TRAIN)
    done, out = launch(tmp_path / "program", "keys", source)
    (key,) = keys_of_rank(out, 0, lambda event: event.window == 1 and event.operator == "aten.addmm.default" and event.module == "0")
    Keep((key,)).save(tmp_path / "keep.json")
    done, out = launch(tmp_path / "program", "kept", source, keep=tmp_path / "keep.json")
    path = out / "rank-00000" / kept_file(0)
    steps = done.stdout.splitlines()
    save_transplants(tmp_path / "t.json", [Transplant(key, path)])
    unfit, trace = launch(tmp_path / "other", "unfit", source.replace("3, 4", "5, 4"), transplant=tmp_path / "t.json")
    assert unfit.returncode == 2
    assert unfit.stderr.rstrip().endswith("[transplant-failed]")
    assert "[5, 8]" in unfit.stderr
    assert "[3, 8]" in unfit.stderr
    assert len(unfit.stdout.splitlines()) == 1, "nothing went on behind the boundary"
    assert Run.open(trace).ranks[0].torn is None
    save_transplants(tmp_path / "t.json", [Transplant(BoundaryKey(**{**key.as_dict(), "step": 77}), path)])
    nowhere, _ = launch(tmp_path / "program", "nowhere", source, transplant=tmp_path / "t.json")
    assert nowhere.returncode == 2
    assert "did not occur" in nowhere.stderr
    assert nowhere.stdout.splitlines() == steps
    path.write_bytes(path.read_bytes()[:-8])
    save_transplants(tmp_path / "t.json", [Transplant(key, path)])
    damaged, folder = launch(tmp_path / "program", "damaged", source, transplant=tmp_path / "t.json")
    assert damaged.returncode == 2
    assert damaged.stdout == ""
    assert not folder.exists()
