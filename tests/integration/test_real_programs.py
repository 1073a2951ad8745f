"""The shipped examples through the shell, as `planted.json` says: equal pairs are identical, each plant is found at its place.

A reference that several pairs of an example share runs once, with the first of them, and is then given as a trace.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from opguard_harness.answer.schema import compare_schema
from opguard_harness.answer.validate import faults
from opguard_harness.workspace.planted import FIRST, pairs, stage
from tests.support.campaign import campaign
from tests.support.fake_training import REPOSITORY

pytestmark = [pytest.mark.torch, pytest.mark.full, pytest.mark.timeout(900)]

# The first example is in the fast tier (test_shell.py). Pairs that share a reference stand together, the equal one first.
PAIRS = sorted((pair for pair in pairs() if pair.example != FIRST), key=lambda pair: (pair.example, pair.launch, bool(pair.expected)))

TELLING = {
    "accelerate/processes",
    "accelerate/sign",
    "ddp/refactored",
    "ddp/hook",
    "hf_trainer/refactored",
    "hf_trainer/library",
    "lightning/refactored",
    "lightning/backward",
    "nanogpt/refactored",
    "nanogpt/backward",
}


class Shell:
    """Runs comparisons in verify mode and keeps the trace of each reference."""

    def __init__(self, place):
        self.place = place
        self.references: dict[tuple, Path] = {}
        self.count = 0

    def compare(self, reference, suspect, launch, *options, code=None):
        """One comparison; returns its answer and its result folder."""
        self.count += 1
        out = self.place / f"out-{self.count}"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        for side in ("STATE", "CACHE"):
            environment[f"XDG_{side}_HOME"] = str(self.place / side.lower())
        words = ["--reference", reference, "--suspect", suspect, "--mode", "verify", "--python", sys.executable, "--json", "--out", out]
        command = [sys.executable, "-m", "opguard_harness", "compare", *words, *options, "--", *launch]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, cwd=REPOSITORY, check=False)
        answer = json.loads(done.stdout)
        assert "error" not in answer, answer
        assert faults(answer, compare_schema()) == []
        assert answer["exit"]["suspect"] == 0
        assert done.returncode == {"identical": 0, "diverged": 1, "inconclusive": 3}[answer["verdict"]]
        return answer, out

    def pair(self, pair):
        """Compare a shipped pair; its reference runs unless its trace is there."""
        folder = self.place / pair.example / pair.name
        folder.mkdir(parents=True)
        reference, suspect = stage(pair, folder, Path(sys.executable))
        known = self.references.get((pair.example, pair.launch), reference.path)
        variables = [word for name, value in suspect.env.items() for word in ("--suspect-env", f"{name}={value}")]
        answer, out = self.compare(known, suspect.path, pair.launch, *variables)
        if known == reference.path:
            self.references[pair.example, pair.launch] = out / "reference"
        return answer


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    made = Shell(tmp_path_factory.mktemp("real"))
    yield made
    shutil.rmtree(made.place, ignore_errors=True)


@pytest.fixture(scope="module")
def answers(shell):
    """Answers by title, each pair compared when it is first asked for."""
    known = {}
    titles = {pair.title: pair for pair in PAIRS}

    def answer(title):
        if title not in known:
            known[title] = shell.pair(titles[title])
        return known[title]

    return answer


@pytest.mark.parametrize("pair", [pytest.param(pair, marks=[] if pair.title in TELLING else campaign, id=pair.title) for pair in PAIRS])
def test_the_answer_is_what_was_planted(answers, pair):
    answer = answers(pair.title)
    assert pair.missed(answer) == "", answer["reasons"]
    assert answer["prefix"]["pairs"] > 100


@pytest.mark.parametrize(
    "example", [pytest.param(one, marks=[] if one in ("ddp", "nanogpt") else campaign) for one in sorted({pair.example for pair in PAIRS})]
)
def test_a_program_agrees_with_itself(shell, answers, example, tmp_path):
    first = next(pair for pair in PAIRS if pair.title == f"{example}/refactored")
    answers(first.title)
    shutil.copytree(first.folder / "reference", tmp_path / "again", ignore=shutil.ignore_patterns("__pycache__"))
    answer, _ = shell.compare(shell.references[example, first.launch], tmp_path / "again", first.launch)
    assert (answer["verdict"], answer["isolated"]) == ("identical", [])
    assert set(answer["compared"]["paired_share"].values()) == {1.0}


def test_a_resumed_trainer_is_identical_over_the_steps_that_both_ran(shell, answers):
    """The Trainer restores weights, moments, schedule, sampler position and random state; the offset is found in the optimizer."""
    answers("hf_trainer/refactored")
    pair = next(pair for pair in PAIRS if pair.title == "hf_trainer/refactored")
    resumed = shell.place / "resumed"
    shutil.copytree(pair.folder / "refactored", resumed, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(shell.place / "hf_trainer" / "refactored" / "reference" / "out", resumed / "out")
    answer, _ = shell.compare(
        shell.references[pair.example, pair.launch], resumed, pair.launch, "--suspect-args", "--resume out/checkpoint-3"
    )
    assert answer["verdict"] == "identical", answer["reasons"]
    assert answer["compared"]["steps"][:4] == [3, 4, 5, 6]
    assert answer["compared"]["steps_only_in"] == {"reference": [0, 1, 2], "suspect": []}


def test_the_other_kind_of_checkpointing_computes_the_same(shell, answers, tmp_path):
    answers("hf_trainer/refactored")
    pair = next(pair for pair in PAIRS if pair.title == "hf_trainer/refactored")
    shutil.copytree(pair.folder / "refactored", tmp_path / "reentrant", ignore=shutil.ignore_patterns("__pycache__"))
    answer, _ = shell.compare(
        shell.references[pair.example, pair.launch], tmp_path / "reentrant", pair.launch, "--suspect-args", "--reentrant"
    )
    assert answer["verdict"] == "identical", answer["reasons"]
