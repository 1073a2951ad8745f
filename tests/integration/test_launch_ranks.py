"""Which processes become ranks, however they are started; what the manifests say; determinism knobs and contract facts."""

import json
import os
import signal
import subprocess
import sys

import pytest

from opguard_core.contract.compare import compare_ranks
from opguard_core.plan.command import launch_argv

pytestmark = pytest.mark.torch

JOIN = """
import os, sys
import torch
import torch.distributed as dist

def run(rank, world):
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath('rendezvous')}", rank=rank, world_size=world)
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 2) * rank).sum().backward()
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    dist.destroy_process_group()
"""


def observe(tmp_path, source, *argv, options=None, **environment):
    (tmp_path / "train.py").write_text(source)
    words = launch_argv(sys.executable, tmp_path / "trace", [sys.executable, "train.py", *argv], **(options or {}))
    env = {key: value for key, value in os.environ.items() if not key.startswith(("OPGUARD", "PYTHON"))}
    done = subprocess.run(
        words, cwd=tmp_path, env={**env, "OMP_NUM_THREADS": "1", **environment}, capture_output=True, text=True, check=False
    )
    return done, json.loads((tmp_path / "trace" / "manifest.json").read_text())


def rank_manifest(tmp_path, rank):
    return json.loads((tmp_path / "trace" / f"rank-{rank:05d}" / "manifest.json").read_text())


def reasons(manifest):
    return sorted(entry["reason"] for entry in manifest["left_alone"])


@pytest.mark.full
@pytest.mark.parametrize("how", ["torch", "spawn", "forkserver"])
def test_ranks_that_the_program_spawns_are_captured_and_their_parent_moves_aside(tmp_path, how):
    source = (
        JOIN
        + """
if __name__ == "__main__":
    if sys.argv[1] == "torch":
        torch.multiprocessing.spawn(run, args=(2,), nprocs=2)
    else:
        torch.multiprocessing.set_start_method(sys.argv[1])
        children = [torch.multiprocessing.Process(target=run, args=(rank, 2)) for rank in range(2)]
        [child.start() for child in children]
        [child.join() for child in children]
"""
    )
    done, manifest = observe(tmp_path, source, how, OPGUARD_SHIM="1" if sys.platform.startswith("linux") else "0")
    assert done.returncode == 0, done.stderr
    assert (manifest["ranks"], manifest["gaps"]) == ([0, 1], [])
    for rank in (0, 1):
        found = rank_manifest(tmp_path, rank)
        assert (found["rank"], found["world_size"], found["ended"], found["complete"]) == (rank, 2, "exit", True)
        assert found["segments"]
        assert found["engines"].get("launches", {}).get("active") is (True if manifest["shim"]["preloaded"] else None)
    assert reasons(manifest)[-2:] == ["parent-of-ranks", "resource-tracker"]
    assert (tmp_path / "trace" / "parent-of-ranks" / "manifest.json").exists()


@pytest.mark.full
def test_forked_ranks_are_a_gap_that_says_what_to_do(tmp_path):
    source = (
        JOIN
        + """
pids = []
for rank in range(2):
    pids.append(os.fork())
    if not pids[-1]:
        run(rank, 2)
        os._exit(0)
sys.exit(max(os.waitpid(pid, 0)[1] for pid in pids))
"""
    )
    done, manifest = observe(tmp_path, source)
    assert done.returncode == 0, done.stderr
    assert reasons(manifest) == ["uncaptured-rank", "uncaptured-rank"]
    assert {gap["slug"] for gap in manifest["gaps"]} == {"uncaptured-rank"}
    assert all("torchrun" in gap["fix"] for gap in manifest["gaps"])


@pytest.mark.full
@pytest.mark.parametrize("parent", ["plain", "torch"])
def test_ranks_that_a_script_starts_with_rank_variables_are_captured(tmp_path, parent):
    source = (
        JOIN
        + """
if "RANK" in os.environ:
    run(int(os.environ["RANK"]), 2)
"""
    )
    (tmp_path / "rank.py").write_text(source)
    starter = "import os, subprocess, sys\n" + ("import torch\n" if parent == "torch" else "")
    starter += """
children = [
    subprocess.Popen([sys.executable, "rank.py"], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"}) for rank in range(2)
]
sys.exit(max(child.wait() for child in children))
"""
    done, manifest = observe(tmp_path, starter)
    assert done.returncode == 0, done.stderr
    assert (manifest["ranks"], manifest["gaps"]) == ([0, 1], [])
    assert reasons(manifest) == ["no-torch" if parent == "plain" else "parent-of-ranks"]


@pytest.mark.full
def test_a_second_program_of_the_same_run_is_left_alone_and_told(tmp_path):
    (tmp_path / "first.py").write_text("import torch\nprint(torch.ones(2).sum())\n")
    words = launch_argv(sys.executable, tmp_path / "trace", ["sh", "-c", f"{sys.executable} first.py && {sys.executable} first.py"])
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    manifest = json.loads((tmp_path / "trace" / "manifest.json").read_text())
    assert done.returncode == 0, done.stderr
    assert (manifest["ranks"], reasons(manifest)) == ([0], ["second-program"])
    assert [gap["slug"] for gap in manifest["gaps"]] == ["second-program"]


def test_the_contract_knobs_and_plan_are_in_the_manifests(tmp_path):
    source = """
import torch
torch.manual_seed(5)
torch.set_num_threads(1)
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
layer(torch.ones(1, 2)).sum().backward()
optimizer.step()
print(torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
"""
    done, manifest = observe(tmp_path, source, "--api-key", "hidden", options={"deterministic": True, "mode": "verify", "steps": (0, 4)})
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
    contract = rank_manifest(tmp_path, 0)["contract"]
    assert contract["late"] == "first optimizer step"
    assert (contract["seed.torch"], contract["threads.intraop"], contract["run.world_size"]) == (5, 1, 1)
    assert contract["source.tree"]["num_files"] == 1
    assert contract["env.OMP_NUM_THREADS"] == "1"
    assert not [key for key, value in contract.items() if isinstance(value, dict) and set(value) == {"unknown"}]
    assert contract["knobs.rank"]["torch.use_deterministic_algorithms"] == {"before": False, "after": True}
    assert contract["knobs.launch"]["PYTHONHASHSEED"] == {"before": None, "after": "0"}
    assert contract["run.argv"][-1] == manifest["argv"][-1] == "***"
    assert "hidden" not in json.dumps(manifest) + json.dumps(contract)
    assert (manifest["mode"], manifest["steps"], manifest["deterministic"]) == ("verify", [0, 4], True)
    assert compare_ranks({0: contract}, {0: contract}) == []
    assert not (tmp_path / "trace" / "plan.json").exists()


def test_an_interrupted_training_closes_its_trace(tmp_path):
    source = """
import torch
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
print("ready", flush=True)
while True:
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""
    (tmp_path / "train.py").write_text(source)
    words = launch_argv(sys.executable, tmp_path / "trace", [sys.executable, "train.py"])
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout.readline() == "ready\n"
        launcher.send_signal(signal.SIGTERM)
        _, said = launcher.communicate(timeout=60)
    assert launcher.returncode == 143, said
    manifest = rank_manifest(tmp_path, 0)
    assert (manifest["ended"], manifest["complete"]) == ("signal", True)
