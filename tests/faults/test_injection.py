"""Faults injected live: a handful with every run of the suite, forty and some cut traces in the full tier.

The campaign of hundreds is a command, `python -m tests.faults.injection`; its tables are in tests/benchmarks/RESULTS.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.faults.injection import faults, memory, truth  # noqa: E402
from tests.faults.injection.faults import Fault  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = {truth.EXACT, truth.EXPRESSION, truth.CONSUMER, truth.ABSORBED}
pytestmark = pytest.mark.torch


def inject(folder: Path, *options: str) -> list[dict]:
    """Run the command in a process of its own: its children fork from it before torch has started a thread."""
    out = folder / "record.jsonl"
    argv = [sys.executable, "-m", "tests.faults.injection", "--out", str(out), "--work", str(folder / "work"), *options]
    done = subprocess.run(argv, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in out.read_text().splitlines()]


def wrong(records: list[dict]) -> list[tuple]:
    """Faults answered otherwise than promised; of a removed operator it is only promised that it is not called identical."""
    more = {faults.REMOVE: {truth.LATE, truth.REFUSED}}
    return [(r["pair"], r["kind"], r["mark"], r["said"]) for r in records if r["mark"] not in {*ALLOWED, *more.get(r["kind"], ()), "void"}]


@pytest.mark.timeout(400)
def test_a_fault_of_every_kind_is_found_where_it_was_put(tmp_path):
    records = inject(tmp_path, "--faults", "6", "--seed", "5", "--pairs", "ema-shadow-aliases-weights", "--modes", "verify")
    assert sorted(r["kind"] for r in records) == sorted(faults.KINDS)
    assert not wrong(records)
    assert sum(r["mark"] == truth.EXACT for r in records) >= 4


@pytest.mark.full
@pytest.mark.timeout(900)
def test_forty_faults_of_a_fixed_seed(tmp_path):
    chosen = (
        "eval-mode-sticks gan-fake-not-detached neg-checkpoint-both-flavours neg-resume-equals-uninterrupted neg-self-replay-nan-inf "
        "tied-weight-reduced-twice"
    ).split()
    records = inject(tmp_path, "--faults", "40", "--seed", "6", "--pairs", *chosen)
    assert len(records) == 40
    assert not wrong(records)
    counted = [r for r in records if r["mark"] not in ("void", truth.ABSORBED) and r["kind"] != faults.REMOVE]
    assert len(counted) >= 20
    assert sum(r["mark"] == truth.EXACT for r in counted) >= 0.92 * len(counted)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_trace_cut_short_is_never_identical(tmp_path):
    records = inject(tmp_path, "--cuts", "16", "--seed", "7", "--pairs", "eval-mode-sticks", "neg-reordered-updates")
    assert [r for r in records if r["mark"] != "refused"] == []


def test_a_fault_that_did_something_and_is_called_identical_is_missed(tmp_path):
    fault = Fault(faults.FLIP, 0, 0, "aten.add.Tensor")
    said = {"verdict": "identical", "pivot": None, "reasons": []}
    for absorbed, mark in ((True, truth.ABSORBED), (False, truth.MISSED)):
        case = truth.Case(fault, 0, 0, (0,), tmp_path, tmp_path, absorbed, frozenset())
        assert truth.mark(case, said)[0] == mark


def test_an_answer_before_the_fault_is_told_from_one_at_it(tmp_path):
    case = truth.Case(Fault(faults.FLIP, 9, 9, "aten.add.Tensor"), 0, 9, (7,), tmp_path, tmp_path, False, frozenset())
    for seq, mark in ((8, truth.EARLIER), (9, truth.EXACT)):
        pivot = {"rank": 0, "operator": "aten.add.Tensor", "origin": "operator", "seq": {"reference": seq - 2, "suspect": seq}}
        assert truth.mark(case, {"verdict": "diverged", "pivot": pivot, "reasons": []})[0] == mark


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_one_bit_of_one_element_changes_and_nothing_tells_torch(dtype):
    x = torch.arange(12).to(dtype).reshape(3, 4).t()
    before, version = x.clone(), x._version
    memory.flip(x, 5, 0)
    assert x._version == version
    assert (memory.content(x) != memory.content(before)) and int((x != before).sum()) == 1
    memory.flip(x, 5, 0)
    assert torch.equal(x, before)


def test_rows_are_swapped_only_if_they_differ():
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]])
    assert not memory.swap(x, 0, 0, 1)
    assert memory.swap(x, 0, 1, 2)
    assert x.tolist() == [[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]


def test_what_an_operator_wrote_can_be_undone():
    x = torch.ones(2, 3).t()
    held = memory.content(x)
    x.mul_(3)
    memory.restore(x, held)
    assert x.tolist() == [[1.0, 1.0]] * 3
