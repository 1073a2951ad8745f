"""A plan is one document: what it says comes back, and what is wrong with it is one clear error."""

import json

import pytest

from opguard_core.errors import ConflictingOptions, PlanError, PlanMismatch
from opguard_core.plan.document import PLAN_FORMAT, Plan, PlanSite, SiteKey, load_plan

KEY = SiteKey("addmm", "forward", "blocks.0.mlp", "MLP.forward", "self.up(x)", ("float32[4,8]", "float32[4,16]"))
RENAMED = SiteKey("addmm", "forward", "blocks.0.mlp", "expand", "up(hidden)", ("float32[4,8]", "float32[4,16]"))
PLAN = Plan("verify", (3, 9), True, (PlanSite(KEY, RENAMED, 2, 1, 3), PlanSite(RENAMED)), {"cost": {"planned_steps": 6}})


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "plan.json"
    PLAN.save(path)
    return path


def test_a_plan_comes_back_as_it_was_written(written):
    assert load_plan(written) == PLAN
    assert load_plan(written).hash == PLAN.hash
    assert written.stat().st_mode & 0o077 == 0


def test_a_plan_for_all_steps_comes_back(tmp_path):
    plan = Plan("full", None, False, ())
    plan.save(tmp_path / "p")
    assert load_plan(tmp_path / "p") == plan


def refused(path, slug, kind=PlanError):
    with pytest.raises(kind) as error:
        load_plan(path)
    told = error.value.as_dict()
    assert told["slug"] == slug
    assert str(path) in told["text"]
    return told["text"]


def test_a_path_without_a_plan_is_told(tmp_path):
    assert "No such file" in refused(tmp_path / "none.json", "plan-not-found")
    assert "a folder" in refused(tmp_path, "plan-not-found")


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "not JSON"), (b"{", "not JSON"), (b"[]", "no format"), (b'{"format": "1"}', "no format"), (b'{"format": true}', "no format")],
)
def test_what_is_no_plan_is_damaged(tmp_path, content, why):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    assert why in refused(path, "plan-damaged")


def test_a_newer_format_is_refused_before_anything_of_it_is_believed(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"format": PLAN_FORMAT + 1, "mode": ["something", "new"]}))
    assert f"format {PLAN_FORMAT + 1}" in refused(path, "plan-newer", PlanMismatch)


def change(path, edit):
    record = json.loads(path.read_text())
    edit(record)
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda plan: plan.update(mode="sentinel"), "'sentinel' is not one of verify, full, trusted"),
        (lambda plan: plan.update(mode=None), "mode None"),
        (lambda plan: plan.update(steps=[4, 4]), "not two whole numbers"),
        (lambda plan: plan.update(steps=[1.0, 2]), "not two whole numbers"),
        (lambda plan: plan.update(deterministic=1), "lacks deterministic"),
        (lambda plan: plan.pop("sites"), "lacks deterministic, about or sites"),
        (lambda plan: plan["sites"].append(3), "a site is int"),
        (lambda plan: plan["sites"][0].update(every=-1), "a site's every is -1"),
        (lambda plan: plan["sites"][0].update(confidence=4), "a site's confidence is 4"),
        (lambda plan: plan["sites"][0]["key"].pop("text"), "lacks a text"),
        (lambda plan: plan["sites"][0]["key"].update(phase="night"), "phase is 'night'"),
        (lambda plan: plan["sites"][0]["other"].update(tensors=[1]), "tensors are not texts"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(written, edit, why):
    change(written, edit)
    assert why in refused(written, "plan-damaged")


@pytest.mark.parametrize(
    "edit",
    [
        lambda plan: plan.update(mode="full"),
        lambda plan: plan.update(steps=None),
        lambda plan: plan.update(deterministic=False),
        lambda plan: plan["sites"].pop(),
        lambda plan: plan["sites"][0].update(every=3),
        lambda plan: plan["sites"][0].update(other=None),
        lambda plan: plan["sites"][1]["key"].update(text="up(x)"),
        lambda plan: plan.update(hash="0" * 64),
        lambda plan: plan.pop("hash"),
    ],
)
def test_a_plan_changed_by_hand_is_no_longer_that_plan(written, edit):
    change(written, edit)
    assert "hash" in refused(written, "plan-damaged")


def test_what_is_not_part_of_the_agreement_may_change(written):
    change(written, lambda plan: plan["about"].update(note="for the Tuesday run"))
    assert load_plan(written).hash == PLAN.hash


def test_a_plan_that_cannot_be_written_says_where(tmp_path):
    with pytest.raises(PlanError, match=r"no-folder.*\[plan-unwritable\]"):
        PLAN.save(tmp_path / "no-folder" / "plan.json")


def test_a_plan_replaces_a_plan_and_nothing_else(written, tmp_path):
    Plan("full", None, False, ()).save(written)
    assert load_plan(written).mode == "full"
    note, link = tmp_path / "note.txt", tmp_path / "link"
    note.write_text("keep me")
    link.symlink_to(written)
    for path in (note, link, tmp_path):
        with pytest.raises(PlanError, match=r"no plan.*\[plan-unwritable\]"):
            PLAN.save(path)
    assert note.read_text() == "keep me"
    assert load_plan(written).mode == "full"


def test_a_run_that_is_not_the_planned_one_is_refused_by_name():
    PLAN.require(mode="verify", steps=(3, 9), deterministic=True)
    with pytest.raises(ConflictingOptions, match="mode verify, not full and steps 3:9, not all and deterministic true, not false"):
        PLAN.require(mode="full", steps=None, deterministic=False)
