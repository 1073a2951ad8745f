"""Two runs are only called equal if they were recorded under one plan, or both under none with the same mode and steps."""

import pytest

from opguard_core.certify.compare import compare
from tests.support.script import Script


def recorded(rank_hash, *, launched=None, planned=True, callsites=()):
    script = Script()
    weight = script.given((4, 4), 1, name="param:w")
    for _ in range(2):
        loss = script.op("aten.mul.Tensor", [script.given((4, 4), 5), weight], at="loss * scale")
        script.op("aten.sub_.Tensor", [weight, loss], into=weight, at="opt.step()", phase="optimizer")
        script.state(param__w=weight)
        script.update()
    engines = {"callsites": {"active": True, "patterns": list(callsites)}} if callsites else {}
    run = script.close(extra={} if rank_hash is None else {"plan_hash": rank_hash}, engines=engines)
    run.manifest.extra.update({"plan_hash": launched} if launched else {}, planned=planned)
    return run


def reasons(reference, suspect):
    verdict = compare(reference, suspect)
    return verdict.verdict, [item.text for item in verdict.reasons if item.slug == "plan-mismatch"]


@pytest.mark.parametrize("planned", [True, False])
def test_the_same_plan_or_none_on_both_sides_is_no_reason(planned):
    assert reasons(recorded("a" * 64, planned=planned), recorded("a" * 64, planned=planned))[1] == []


def test_two_plans_are_named_shortly():
    verdict, texts = reasons(recorded("a" * 64), recorded("b" * 64))
    assert verdict == "inconclusive"
    assert texts == [f"The sides were recorded under different plans: plan {'a' * 12} and {'b' * 12}."]


def test_one_side_without_a_plan_is_under_another_one():
    verdict, texts = reasons(recorded("a" * 64), recorded("b" * 64, planned=False))
    assert verdict == "inconclusive"
    assert texts == [f"The sides were recorded under different plans: plan {'a' * 12} and none."]


def test_sides_without_a_plan_name_the_calls_that_only_one_of_them_observed():
    """Not "plan none and none", which tells nobody what to make equal."""
    verdict, texts = reasons(recorded("a" * 64, planned=False), recorded("b" * 64, planned=False, callsites=["auto", "my_ext.*"]))
    assert verdict == "inconclusive"
    assert texts == ["The sides were recorded under different plans: plan none and none (--callsites auto --callsites my_ext.*)."]


def test_a_rank_that_was_killed_is_under_the_plan_that_its_launcher_wrote():
    """The rank's own manifest gets the hash when it ends; the launcher's has it from the start."""
    assert reasons(recorded("a" * 64), recorded(None, launched="a" * 64))[1] == []
    verdict, texts = reasons(recorded("a" * 64), recorded(None, launched="b" * 64))
    assert verdict == "inconclusive"
    assert texts
