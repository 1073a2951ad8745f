"""Exit code 1 means "diverged" and nothing else: an exception is planted in every layer, and each ends in 2."""

import importlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from opguard_harness.__main__ import main
from tests.support.fake_training import REPOSITORY, fake_program
from tests.support.synthetic import Corrupt, GptShape, Side, gpt, write_run

# Where an exception is planted: one place at least in every layer that the agent's process runs.
LAYERS = [
    "opguard_harness.cli.app:get_command",
    "opguard_harness.cli.app:dispatch",
    "opguard_harness.edge:_deliver",
    "opguard_harness.edge:_signals",
    "opguard_harness.compare.request:split_words",
    "opguard_harness.compare.pipeline:compare",
    "opguard_harness.compare.pipeline:resolve",
    "opguard_harness.compare.pipeline:choose_out",
    "opguard_harness.compare.pipeline:scratch",
    "opguard_harness.compare.pipeline:dumps",
    "opguard_harness.compare.pipeline:checked",
    "opguard_harness.compare.folders:Results.finish",
    "opguard_harness.compare.folders:Results.__exit__",
    "opguard_harness.compare.judging:judge",
    "opguard_harness.compare.judging:certify",
    "opguard_harness.compare.judging:to_dict",
    "opguard_harness.compare.judging:compare_ranks",
    "opguard_harness.answer.schema:faults",
    "opguard_core.trace.reader:Run.open",
    "opguard_core.trace.reader:RankTrace.iter_windows",
    "opguard_core.trace.reader:decode_segment",
    "opguard_core.align.timeline:Timeline.steps",
    "opguard_core.align.loading:RankColumns.iter_windows",
    "opguard_core.align.aligned:pair_exact",
    "opguard_core.align.aligned:pair_flow",
    "opguard_core.align.aligned:solve_gaps",
    "opguard_core.align.passes:solve",
    "opguard_core.align.gaps:_batches",
    "opguard_core.align.steps:Steps.of",
    "opguard_core.certify.compare:pair_ranks",
    "opguard_core.certify.compare:RankJudge",
    "opguard_core.certify.judge:RootWalk",
    "opguard_core.certify.judge:compare_state",
    "opguard_core.certify.compare:summarise",
    "opguard_core.certify.summary:Verdict",
    "opguard_core.contract.compare:rule_of",
]
# Modules that run in the training's processes; each is made to fail while it is imported.
TRAINING_LAYERS = [
    "errors",
    "ids",
    "plan/orders",
    "plan/config",
    "contract/source_tree",
    "launch/command",
    "launch/launcher",
    "launch/child",
    "launch/outcome",
    "launch/rank",
    "trace/manifest",
    "trace/writer",
    "fingerprint/cpu",
    "probe/tensor",
    "determinism/facts",
    "engines/dispatch",
    "capture/session",
]
PLANTED = [
    RuntimeError("planted"),
    KeyError("planted"),
    SystemExit(1),
    MemoryError("planted"),
    OSError(5, "planted"),
    ImportError("planted"),
]


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    program = gpt(GptShape(layers=1, steps=2))
    # A contract difference, so that the layer that weighs them has something to do.
    write_run(folder / "reference", program, contract={"env.OMP_NUM_THREADS": "1"})
    write_run(
        folder / "suspect",
        Side(program, [Corrupt(program.find(1, operator="aten.gelu.default")[0])]),
        contract={"env.OMP_NUM_THREADS": "2"},
    )
    return ["--reference", str(folder / "reference"), "--suspect", str(folder / "suspect"), "--suspect-args="]


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def plant(monkeypatch, target, error):
    module, _, path = target.partition(":")
    holder = importlib.import_module(module)
    *classes, name = path.split(".")
    for part in classes:
        holder = getattr(holder, part)

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(holder, name, fail)


def test_without_a_planted_exception_the_same_command_ends_in_1(traces, capsys):
    assert main(["compare", "--json", *traces]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "diverged"


@pytest.mark.parametrize("target", LAYERS)
def test_an_exception_in_any_layer_of_the_harness_ends_in_2(traces, monkeypatch, capsys, target):
    error = PLANTED[LAYERS.index(target) % len(PLANTED)]
    plant(monkeypatch, target, error)
    assert main(["compare", "--json", *traces]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] is None
    assert answer["error"]["slug"] in ("internal", "system", "dependency-missing")


@pytest.mark.parametrize("error", PLANTED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("target", ["opguard_core.certify.compare:summarise", "opguard_harness.report.short:short_answer"])
def test_any_exception_ends_in_2_for_people_too(traces, monkeypatch, capsys, target, error):
    plant(monkeypatch, target, error)
    assert main(["compare", *traces]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("target", LAYERS)
def test_an_interrupt_in_any_layer_ends_in_130(traces, monkeypatch, capsys, target):
    plant(monkeypatch, target, KeyboardInterrupt())
    assert main(["compare", "--json", *traces]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["slug"] == "interrupted"


@pytest.mark.torch
@pytest.mark.full
@pytest.mark.parametrize("module", TRAINING_LAYERS)
def test_an_exception_in_any_layer_of_the_training_side_ends_in_2(tmp_path, module):
    for package in ("opguard_core", "opguard_harness"):
        shutil.copytree(REPOSITORY / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "opguard_core" / f"{module}.py").open("a") as stream:
        stream.write("\nraise RuntimeError('planted')\n")
    for side in ("a", "b"):
        (fake_program(tmp_path / side) / "train.py").write_text(
            "import torch\nw = torch.ones(3, requires_grad=True)\n(w * 2).sum().backward()\n"
        )
    command = [
        sys.executable,
        "-m",
        "opguard_harness",
        "compare",
        "--json",
        "--reference",
        "a",
        "--suspect",
        "b",
        "--python",
        sys.executable,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert json.loads(done.stdout)["error"]["slug"]
