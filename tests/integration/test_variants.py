"""Value-neutral edits of whole programs: the verdict and the pivot do not move. Which edits there are is tested without torch."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("libcst")

from tests.support.campaign import campaign
from tests.variants.campaign import (
    MOVED,
    NONE,
    NOT_NEUTRAL,
    REFUSED,
    SAME,
    Case,
    prepare,
    read_cases,
    table,
    variant,
    variants,
)
from tests.variants.edits import EDITS
from tests.variants.runs import REPOSITORY, running

pytestmark = pytest.mark.torch
EXAMPLE = REPOSITORY / "examples" / "tiny_gpt"
CASES = REPOSITORY / "tests" / "cases"
SEED = 20261129
EVERY = 4  # of the cases


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    with running(tmp_path_factory.mktemp("reports")) as started:
        yield started


@pytest.fixture(scope="module")
def example(runner, tmp_path_factory):
    """The embedded example as a case, run and judged."""
    case = Case("tiny-gpt", {"slug": "tiny-gpt", "launch": ["python", "train.py"], "expected": {}}, EXAMPLE)
    prepare(case, runner, tmp_path_factory.mktemp("example") / "tiny-gpt")
    return case


def moves(outcomes):
    return [outcome for outcome in outcomes if outcome.mark in (MOVED, REFUSED)]


def test_the_example_as_it_is_parts_at_its_plant(example):
    truth = json.loads((EXAMPLE / "planted.json").read_text())["pairs"][0]
    assert example.answer["verdict"] == "diverged"
    assert example.answer["pivot"]["step"] == truth["step"]


def test_edits_of_either_side_move_nothing(example, runner, tmp_path):
    outcomes = list(variants(example, runner, tmp_path, ["mixed", "expressions-extracted"], 2, SEED))
    assert moves(outcomes) == []
    assert sum(outcome.mark == SAME for outcome in outcomes) == 2
    assert not list(tmp_path.iterdir())


def test_an_edit_that_changes_what_is_printed_or_learned_is_not_judged(example, runner, tmp_path, monkeypatch):
    def other_rate(program, rng):
        changed = {name: text.replace("lr=", "lr=0.5 * ") for name, text in program.files.items()}
        assert changed != program.files
        program.files.update(changed)

    monkeypatch.setitem(EDITS, "other-rate", other_rate)
    outcome = variant(example, runner, tmp_path / "one", "other-rate", ("suspect",), np.random.default_rng(0), 0)
    assert outcome.mark == NOT_NEUTRAL


def test_an_edit_whose_record_is_wrong_counts_as_moved(example, runner, tmp_path, monkeypatch):
    def unrecorded(program, rng):
        EDITS["comments"](program, rng)
        program.files = {name: text.replace("#@", "#@9") for name, text in program.files.items()}

    monkeypatch.setitem(EDITS, "unrecorded", unrecorded)
    outcome = variant(example, runner, tmp_path / "one", "unrecorded", ("suspect",), np.random.default_rng(0), 0)
    assert outcome.mark == MOVED
    assert outcome.what.startswith("suspect statement")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_no_kind_of_edit_moves_the_example(example, runner, tmp_path):
    outcomes = list(variants(example, runner, tmp_path, list(EDITS), len(EDITS), SEED))
    assert moves(outcomes) == [], table(outcomes)
    assert Counter(outcome.mark for outcome in outcomes)[SAME] >= len(EDITS) - 3, [o for o in outcomes if o.mark in (NONE, NOT_NEUTRAL)]


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [0, *(pytest.param(more, marks=campaign) for more in range(1, EVERY // 2))])
def test_edits_of_a_sample_of_the_cases_move_nothing(runner, tmp_path, number):
    kinds, turn, outcomes = list(EDITS), number * 5, []
    for case in read_cases(CASES)[number * 2 :: EVERY]:
        home: Path = tmp_path / case.slug
        prepare(case, runner, home)
        assert case.judge(case.facts, case.answer)[0] == "right", case.slug
        mine = kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]
        outcomes += variants(case, runner, home, mine, 1, SEED)
        turn = kinds.index(outcomes[-1].kind) + 1
        shutil.rmtree(home)
    assert moves(outcomes) == [], table(outcomes)
    assert sum(outcome.mark == SAME for outcome in outcomes) >= 10
