"""The sites of a plan in a run: found, moved, missing, extra - by name and number, on refactored sides too."""

import dataclasses

import pytest

from opguard_core.plan.document import Plan
from opguard_core.preflight.discover import discover
from opguard_core.preflight.follow import follow
from tests.unit.preflight.conftest import PLAIN, REFACTORED, Style


@pytest.fixture
def plan(run):
    return Plan("verify", None, False, discover(run(), run(Style(texts={"loss * share": "share * loss"}))).sites)


def test_both_sides_of_a_plan_have_all_its_sites_under_their_own_names(plan, run):
    for style in (PLAIN, Style(texts={"loss * share": "share * loss"})):
        found = follow(plan, run(style, steps=6))
        assert (found.found, found.moved, found.missing, found.extra) == (len(plan.sites), (), (), ())
        assert found.share == 1.0
        assert found.windows == (0, 1, 2, 3)


def test_a_refactored_side_has_them_all_and_the_moves_are_named(plan, run):
    found = follow(plan, run(REFACTORED))
    assert (found.missing, found.extra) == ((), ())
    moved = {(one.site.key.operator, one.site.key.phase, one.site.key.module): one for one in found.moved}
    assert moved["linear", "forward", "layers.0"].now.text == "F.linear(hidden,weight)"
    assert moved["linear", "forward", "layers.0"].now.module == "layers.0"
    assert str(moved["linear", "forward", "layers.1"].spot) == "helpers/block.py:200"
    assert all(0.5 <= one.score < 1 for one in found.moved)
    assert found.found + len(found.moved) == found.sites == len(plan.sites)


def test_what_a_run_lacks_is_missing_with_how_much(plan, run):
    found = follow(plan, run(Style(without=True)))
    (one,) = found.missing
    assert (one.site.key.operator, one.site.key.module, one.wanted, one.found) == ("relu", "layers.0", 1, 0)
    assert found.share == 1 - 1 / len(plan.sites)


def test_what_a_run_does_besides_is_extra(plan, run):
    found = follow(plan, run(Style(extra="aten.cos.default")))
    assert found.missing == found.moved == ()
    assert [(one.key.operator, one.count) for one in found.extra] == [("cos", 1)]


def test_an_operator_elsewhere_does_not_stand_in_for_a_missing_one(plan, run):
    """Deleted in one layer and another one of that kind in `main`, with other tensors: that is not a move."""
    style = Style(without=True, extra="aten.cos.default")
    assert [one.site.key.operator for one in follow(plan, run(style)).missing] == ["relu"]


def test_executions_are_counted(run):
    looped = Plan("verify", None, False, tuple(dataclasses.replace(site, every=2 * site.every) for site in discover(run(), run()).sites))
    found = follow(looped, run())
    assert {(one.wanted, one.found) for one in found.missing} == {(2, 1), (4, 2)}
    assert found.found == 1, "the set-up, which is counted by itself"


def test_another_batch_size_is_a_move(plan, run):
    found = follow(plan, run(Style(batch=8)))
    assert not found.missing
    assert {one.site.key.operator for one in found.moved} == {"linear", "relu", "mul"}


def test_set_up_is_not_looked_for_in_a_run_that_records_later_steps_only(plan, run):
    later = run(first_window=7)
    later.manifest.steps = (7, 10)
    found = follow(plan, later)
    assert (found.found, found.missing, found.windows) == (len(plan.sites) - 1, (), (7, 8, 9))


def test_a_run_of_one_step_is_compared_with_all_that_the_first_step_does(plan, run):
    found = follow(plan, run(steps=1))
    assert (found.found, found.missing, found.extra) == (len(plan.sites), (), ())


def test_a_run_that_never_updates_is_looked_at_all_the_same(plan, run):
    found = follow(plan, run(counted="counted=False"))
    assert (found.found, found.missing) == (len(plan.sites), ())


def test_as_many_steps_are_looked_at_as_the_preflight_looked_at(plan, run):
    assert follow(plan, run(steps=9)).windows == (0, 1, 2, 3)
    assert follow(dataclasses.replace(plan, about={"steps_looked_at": 6}), run(steps=9)).windows == (0, 1, 2, 3, 4, 5)


def test_a_plan_without_sites_lacks_nothing(run):
    found = follow(Plan("full", None, False, ()), run())
    assert (found.share, found.sites, found.missing) == (1.0, 0, ())
    assert found.extra
