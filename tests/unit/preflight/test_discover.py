"""Two short traces: what both sides do, how often, and what each does alone."""

import dataclasses

from opguard_core.preflight.discover import discover
from tests.support.script import Script
from tests.unit.preflight.conftest import PLAIN, REFACTORED, Style


def named(sites):
    return {(site.key.operator, site.key.phase, site.key.module): site for site in sites}


def test_a_program_shares_everything_with_itself(run):
    found = discover(run(), run())
    assert found.reference_only == found.suspect_only == ()
    assert found.steps == 3
    assert found.alone == (0, 0)
    assert found.shared == 8  # two layers of two operators, the loss, two gradients, the update
    assert all(site.other is None for site in found.sites)


def test_set_up_is_told_apart_from_what_every_step_does(run):
    sites = named(discover(run(), run()).sites)
    assert [(site.every, site.first) for site in (sites["normal", "data", ""], sites["linear", "forward", "layers.1"])] == [(0, 1), (1, 0)]


def test_operators_are_named_without_overload_and_underscore_and_with_their_tensors(run):
    sites = named(discover(run(), run()).sites)
    assert sites["sub", "optimizer", ""].key.tensors == ("float32[4,4]",)
    assert sites["linear", "forward", "layers.0"].key.tensors == ("float32[4,4]", "float32[4,4]", "float32[4,4]")
    assert sites["linear", "forward", "layers.0"].key.text == "F.linear(x,w)"


def test_a_backward_boundary_is_named_by_the_forward_one(run):
    key = named(discover(run(), run()).sites)["mm", "backward", ""].key
    assert (key.function, key.text) == ("Net.forward", "F.linear(x,w)")


def test_line_numbers_are_no_part_of_a_name(run):
    found = discover(run(), run(dataclasses.replace(PLAIN, line=99)))
    assert all(site.other is None for site in found.sites)


def test_a_refactored_side_shares_everything_under_other_names(run):
    found = discover(run(), run(REFACTORED))
    assert found.reference_only == found.suspect_only == ()
    renamed = {site.key.text: site.other.text for site in found.sites if site.other is not None}
    assert renamed["F.linear(x,w)"] == "F.linear(hidden,weight)"
    assert named(found.sites)["sub", "optimizer", ""].other is None


def test_what_a_side_has_alone_is_listed_with_its_place_and_count(run):
    found = discover(run(), run(Style(extra="aten.cos.default")))
    assert found.reference_only == ()
    (alone,) = found.suspect_only
    assert (alone.key.operator, alone.every, alone.first, str(alone.spot)) == ("cos", 1, 0, "train.py:1")
    assert (found.shared, found.alone, found.share) == (8, (0, 1), (1.0, 8 / 9))


def test_work_after_the_last_update_is_no_step(run):
    found = discover(run(tail=True), run(tail=True))
    assert found.steps == 3
    assert ("mean", "eval", "") not in named(found.sites)


def test_without_any_update_all_there_is_counts(run):
    found = discover(run(counted="counted=False"), run(counted="counted=False"))
    assert found.shared == 8
    assert found.steps == 3


def growing(script, names):
    """A loss whose batch has another size in each step, and whose expression is written as ``names`` say."""
    for step, name in enumerate(names):
        x = script.given((step + 2, 4), 100 + step)
        script.op("aten.cumsum.default", [x], (step + 2, 4), at="cumsum(x)")
        script.op("aten.mean.default", [script.given((4, 4), 200 + step)], (4, 4), at=name)
        script.update()
    return script.close()


def test_a_step_has_as_many_boundaries_as_it_has_though_every_one_has_other_sizes():
    found = discover(growing(Script(), "abcde"), growing(Script(), "abcde"))
    assert found.shared == 2
    assert len(found.sites) == 10


def test_a_site_that_meets_another_partner_in_another_step_is_asked_for_once():
    """One line on one side, one of two branches on the other: neither side runs it twice in a step."""
    found = discover(growing(Script(), "aaaaa"), growing(Script(), "abcbc"))
    asked = sum(site.every for site in found.sites if site.key.text == "a")
    assert asked == 1
    assert sum(site.first for site in found.sites if site.key.text == "a") == 0


def test_work_on_the_data_is_listed_and_does_not_count_for_the_share():
    def loaded(where):
        script = Script()
        for step in range(3):
            if where == "main":
                for at in range(9):
                    script.op("aten.cos.default", [script.given((4, 4), 1000 * step + at)], (4, 4), phase="data", at=f"augment({at})")
            script.op("aten.mm.default", [script.given((4, 4), step), script.given((4, 4), 7)], (4, 4), at="net(x)")
            script.update()
        return script.close()

    found = discover(loaded("main"), loaded("worker"))
    assert (found.shared, found.alone, found.share) == (1, (9, 0), (1.0, 1.0))
