"""Real programs about which an honest answer must say what it cannot know: a shared bug, two precisions, nothing reproduces.

The claims about the words of an answer are tested on written traces in tests/unit/certify/test_caveats.py; here capture,
contract and judgement together have to give them for programs that do such things.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opguard_harness.answer.schema import compare_schema
from opguard_harness.answer.validate import faults
from opguard_harness.report.short import short_answer
from tests.support.campaign import campaign
from tests.support.fake_training import REPOSITORY

PROGRAMS = Path(__file__).resolve().parents[1] / "programs" / "common_mode"

pytestmark = [pytest.mark.torch, pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture
def compare(tmp_path):
    """Run `compare` on programs as a user does; gives the answer and its short form."""

    def run(reference, suspect, *words, argv=("python", "train.py"), name="out"):
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }
        sides = ["--reference", str(PROGRAMS / reference), "--suspect", str(PROGRAMS / suspect)]
        options = ["--python", sys.executable, "--json", "--out", str(tmp_path / name), "--timeout", "300", *words]
        command = [sys.executable, "-m", "opguard_harness", "compare", *sides, *options, "--", *argv]
        done = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=REPOSITORY, check=False)
        answer = json.loads(done.stdout)
        assert faults(answer, compare_schema()) == []
        assert answer["verdict"] is not None, answer
        return answer, "\n".join(short_answer(answer))

    return run


def slugs(answer):
    return [reason["slug"] for reason in answer["reasons"]]


def test_a_bug_that_both_sides_have_is_invisible_and_the_answer_says_so(compare):
    answer, text = compare("shared_bug/reference", "shared_bug/suspect")
    assert (answer["verdict"], answer["scope"]["determinism"]) == ("identical", "cross-stack")
    assert answer["compared"]["parameter_updates"] > 0
    assert "a bug that both sides have is invisible here" in answer["scope"]["limit"]
    assert "limits      Both sides computed the same bits. That does not say that they are right: a bug that both sides have" in text


@pytest.mark.parametrize("policy", [pytest.param("bfloat16", marks=campaign), "autocast"])
def test_another_precision_everywhere_is_a_policy_and_not_the_place_of_a_bug(compare, policy):
    answer, text = compare("precision", "precision", "--suspect-args", policy)
    assert (answer["verdict"], answer["pivot"]["origin"], answer["pivot"]["step"]) == ("diverged", "dtype", 0)
    assert slugs(answer) == ["precision-policy"]
    assert "two precision policies, whose bits cannot agree" in text
    assert "not the place of a bug" in text


def test_one_cast_in_one_layer_is_a_place(compare):
    answer, text = compare("precision", "precision", "--suspect-args", "place")
    assert (answer["verdict"], answer["pivot"]["origin"], slugs(answer)) == ("diverged", "dtype", [])
    assert answer["pivot"]["suspect"]["text"] == "h.bfloat16()"
    assert "not the place of a bug" not in text


@pytest.mark.parametrize(
    ("what", "origins", "reason"),
    [
        ("torch", {"random-state"}, "unseeded"),
        pytest.param("random", {"input-data"}, "runs-differ", marks=campaign),
        pytest.param("numpy", {"input-data"}, "runs-differ", marks=campaign),
        ("clock", {"argument"}, "runs-differ"),
    ],
)
def test_a_program_that_does_not_reproduce_itself_is_told_what_is_random(compare, what, origins, reason):
    answer, text = compare("unseeded", "unseeded", argv=("python", "train.py", what))
    assert answer["verdict"] == "diverged"
    assert (answer["pivot"]["origin"] in origins, answer["scope"]["determinism"]) == (True, "run-to-run")
    assert reason in slugs(answer)
    assert ("seed" in text) and answer["reasons"][0]["fix"][:60] in text


def test_runs_that_differ_elsewhere_each_time_are_told_to_look_for_that(compare, tmp_path):
    """Pairs of runs of one program: each is diverged at a true place, and none of them claims to have found a bug."""
    decided = tmp_path / "where"
    given = ["--reference-env", f"MOVING_WHERE={decided}", "--suspect-env", f"MOVING_WHERE={decided}"]
    for attempt, steps in enumerate(((3, 7), (6, 2))):
        decided.write_text("\n".join(str(step + (5 << 16)) for step in steps))
        answer, text = compare("moving", "moving", *given, name=f"out{attempt}")
        assert (answer["verdict"], answer["pivot"]["step"]) == ("diverged", min(steps))
        assert slugs(answer) == ["runs-differ"]
        assert "does not agree with itself" in text
        assert "if the place moves, it is a race" in text
        place = answer["pivot"]["suspect"] or answer["pivot"]["reference"]
        assert place["text"].startswith("bias.add_")


def test_a_variable_that_only_one_side_has_is_the_setting_that_differs(compare, tmp_path):
    """It is the same program, and may well agree with itself: nobody can say otherwise of runs that were started differently."""
    sides = []
    for side, step in (("reference", 3), ("suspect", 7)):
        (tmp_path / side).write_text(str(step + (5 << 16)))
        sides += [f"--{side}-env", f"MOVING_WHERE={tmp_path / side}"]
    answer, text = compare("moving", "moving", *sides)
    assert (answer["verdict"], answer["pivot"]["step"], slugs(answer)) == ("diverged", 3, [])
    assert "does not agree with itself" not in text
    (differs,) = [item for item in answer["contract"] if item["key"] == "env.MOVING_WHERE"]
    assert differs["severity"] == "environment"
    assert str(tmp_path / "suspect") not in json.dumps(differs)


@pytest.mark.parametrize("what", [pytest.param("init", marks=campaign), pytest.param("dropout", marks=campaign), "attention"])
def test_numbers_drawn_inside_an_operator_by_a_program_that_says_nothing(compare, what):
    answer, text = compare("quiet", "quiet", argv=("python", "train.py", what))
    assert (answer["verdict"], answer["pivot"]["origin"]) == ("diverged", "random-state")
    assert "unseeded" in slugs(answer)
    assert "torch.manual_seed" in text


def test_drawn_numbers_that_nothing_uses_are_named_with_their_origin(compare):
    """No update, no output: that the weights differ may not matter, so there is no verdict; but what they are is said."""
    answer, text = compare("quiet", "quiet", argv=("python", "train.py", "unused"))
    assert (answer["verdict"], slugs(answer)) == ("inconclusive", ["unresolved-difference", "unseeded"])
    assert {entry["origin"] for entry in answer["candidates"]} == {"random-state"}
    assert "torch.manual_seed" in text
    assert "candidate   train.py" in text
