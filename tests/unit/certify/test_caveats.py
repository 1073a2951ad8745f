"""Beside a verdict: equal is not right, two precisions are no bug's place, and a program that does not reproduce itself is said to."""

import pytest

from opguard_core.certify.compare import compare
from opguard_core.trace.manifest import RankManifest
from tests.support.memory import MemoryTrace, memory_run
from tests.support.script import Held, Script
from tests.unit.certify.conftest import slugs, train
from tests.unit.certify.test_origins import clone, in_step

TREE = {"source.tree": {"sha256": "ab", "num_files": 1}, "run.argv": ["python", "train.py"]}


def run(twist=None, **contract):
    """One run with a contract."""
    script = Script()
    train(script, twist=twist)
    script.close()
    assert isinstance(script.writer.manifest, RankManifest)
    script.writer.manifest.contract.update(contract)
    return memory_run([MemoryTrace(script.writer, script.writer.manifest)])


def reseeded(state):
    def change(s, t):
        t["a"] = s.op("aten.dropout.default", [t["a"]], (4, 8), 900 + state, at="drop(a)", line=30, rng=("cpu", state))

    return in_step(0, "after gelu", change)


def test_identical_says_that_a_common_bug_is_invisible_and_whose_agreement_it_is():
    again = compare(run(**TREE), run(**TREE))
    assert (again.verdict, again.scope["determinism"]) == ("identical", "run-to-run")
    assert "a mistake that it makes every time is invisible" in again.scope["limit"]
    other = compare(run(**TREE), run(**{**TREE, "source.tree": {"sha256": "cd", "num_files": 2}}))
    assert (other.verdict, other.scope["determinism"]) == ("identical", "cross-stack")
    assert "a bug that both sides have is invisible" in other.scope["limit"]


def test_only_identical_claims_agreement():
    assert "limit" not in compare(run(clone()), run(clone(Held(9)))).scope


def test_unequal_seeds_are_named_where_drawn_numbers_differ():
    verdict = compare(run(reseeded(1), **{"seed.torch": 3}), run(reseeded(2), **{"seed.torch": 4}))
    assert (verdict.verdict, verdict.pivot.origin, slugs(verdict)) == ("diverged", "random-state", ["unseeded"])
    assert "(3 and 4)" in verdict.reasons[0].text
    assert "torch.manual_seed" in verdict.reasons[0].fix


def test_unequal_seeds_are_not_blamed_for_anything_else():
    verdict = compare(run(clone(), **{"seed.torch": 3}), run(clone(Held(9)), **{"seed.torch": 4}))
    assert (verdict.pivot.origin, slugs(verdict)) == ("operator", [])
    assert slugs(compare(run(reseeded(1), **{"seed.torch": 3}), run(reseeded(2), **{"seed.torch": 3}))) == []


def test_a_difference_nobody_read_says_that_it_was_drawn():
    def filled(content, state):
        def change(s, t):
            s.op("aten.uniform_.default", [], (8, 8), content, into=s.given((8, 8), 0), at="nn.Linear(8, 8)", line=30, rng=("cpu", state))

        return in_step(1, "batch", change)

    verdict = compare(run(filled(1, 5), **{"seed.torch": 3}), run(filled(2, 6), **{"seed.torch": 4}))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["unresolved-difference", "unseeded"])
    assert "(origin: random-state)" in verdict.reasons[0].text
    assert verdict.candidates[0]["origin"] == "random-state"


@pytest.mark.parametrize(
    ("sides", "origin", "hint"),
    [
        ((clone(), clone(Held(9))), "operator", "race"),
        ((reseeded(1), reseeded(2)), "random-state", "Seed every generator"),
        ((clone(), clone(Held(9), args="2")), "argument", "time"),
    ],
)
def test_one_program_that_does_not_agree_with_itself_is_said_to(sides, origin, hint):
    verdict = compare(*(run(twist, **TREE) for twist in sides))
    assert (verdict.verdict, verdict.pivot.origin, slugs(verdict)) == ("diverged", origin, ["runs-differ"])
    assert hint in verdict.reasons[0].fix


@pytest.mark.parametrize(
    "contracts",
    [
        ({}, {}),
        (TREE, {}),
        (TREE, {**TREE, "run.argv": ["python", "train.py", "--fast"]}),
        (TREE, {**TREE, "source.tree": {"sha256": "cd", "num_files": 1}}),
        (TREE, {**TREE, "env.MKL_CBWR": "AVX2"}),
        (TREE, {**TREE, "package.numpy": "2.0"}),
        ({**TREE, "threads.intraop": 1}, {**TREE, "threads.intraop": 2}),
    ],
)
def test_two_programs_or_settings_may_differ(contracts):
    verdict = compare(*(run(twist, **contract) for twist, contract in zip((clone(), clone(Held(9))), contracts, strict=True)))
    assert "runs-differ" not in slugs(verdict)


def in_precision(low):
    """One forward pass, all of it or one operator in another precision."""

    def change(s, t):
        at = t["h"]
        for number in range(8):
            dtype = "bfloat16" if number in low else "float32"
            held = Held((2000 if low and number >= min(low) else 1000) + number)
            at = s.op("aten.mm.default", [at], (4, 8), held, dtype=dtype, at=f"layer{number}(x)", line=40 + number)
        t["h"] = at

    return in_step(0, "after mm", change)


def test_a_precision_policy_is_no_place_of_a_bug():
    verdict = compare(run(in_precision(())), run(in_precision(range(8))))
    assert (verdict.verdict, verdict.pivot.origin, slugs(verdict)) == ("diverged", "dtype", ["precision-policy"])
    assert "not the place of a bug" in verdict.reasons[0].text


def test_one_operator_in_another_precision_is_a_place():
    verdict = compare(run(in_precision(())), run(in_precision((3,))))
    assert (verdict.verdict, verdict.pivot.origin, slugs(verdict)) == ("diverged", "dtype", [])
    assert verdict.pivot.suspect.text == "layer3(x)"


def test_a_cast_that_only_one_side_makes_is_a_difference_in_precision():
    def cast(s, t):
        low = s.op("aten._to_copy.default", [t["h"]], (4, 8), Held(77), dtype="bfloat16", at="h.bfloat16()", line=30)
        t["h"] = s.op("aten._to_copy.default", [low], (4, 8), Held(78, 77), at="h.float()", line=31)

    verdict = compare(run(), run(in_step(0, "after mm", cast)))
    assert (verdict.verdict, verdict.pivot.origin, verdict.pivot.origin_alternatives) == ("diverged", "dtype", ["structure"])
    assert (verdict.pivot.reference, verdict.pivot.suspect.text) == (None, "h.bfloat16()")
