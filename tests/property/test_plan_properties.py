"""Claims: a plan's hash depends on the agreement alone - not on the order of keys, sites or facts about it - and on all of it."""

import dataclasses
import json

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_core.ids import Phase
from opguard_core.plan.document import PLANNED_MODES, Plan, PlanSite, SiteKey, load_plan

settings.register_profile("plan", derandomize=True, deadline=None, max_examples=60)
PROFILE = settings.get_profile("plan")

texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
keys = st.builds(
    SiteKey, texts, st.sampled_from([str(phase) for phase in Phase]), texts, texts, texts, st.lists(texts, max_size=3).map(tuple)
)
counts = st.integers(0, 2**53 - 1)
sites = st.builds(PlanSite, keys, st.none() | keys, counts, counts, st.integers(1, 3))
windows = st.none() | st.tuples(st.integers(0, 99), st.integers(100, 999))
plans = st.builds(Plan, st.sampled_from(PLANNED_MODES), windows, st.booleans(), st.lists(sites, max_size=4).map(tuple), st.just({}))


@PROFILE
@given(plans, st.randoms(use_true_random=False))
def test_order_of_keys_and_sites_does_not_matter(tmp_path_factory, plan, random):
    def shuffled(value):
        if isinstance(value, dict):
            items = list(value.items())
            random.shuffle(items)
            return {key: shuffled(item) for key, item in items}
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    record = shuffled(plan.to_dict())
    random.shuffle(record["sites"])
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(json.dumps(record))
    again = load_plan(path)
    assert again.hash == plan.hash
    assert sorted(again.sites, key=repr) == sorted(plan.sites, key=repr)


@PROFILE
@given(plans, plans)
def test_two_plans_have_one_hash_only_if_they_agree_in_everything(one, other):
    same = (one.mode, one.steps, one.deterministic, sorted(one.sites, key=repr)) == (
        other.mode,
        other.steps,
        other.deterministic,
        sorted(other.sites, key=repr),
    )
    assert (one.hash == other.hash) == same


@PROFILE
@given(plans, sites, st.data())
def test_any_change_of_the_agreement_is_another_hash(plan, site, data):
    changed = [
        dataclasses.replace(plan, mode=data.draw(st.sampled_from([mode for mode in PLANNED_MODES if mode != plan.mode]))),
        dataclasses.replace(plan, steps=data.draw(windows.filter(lambda steps: steps != plan.steps))),
        dataclasses.replace(plan, deterministic=not plan.deterministic),
        dataclasses.replace(plan, sites=(*plan.sites, site)),
    ]
    for at, old in enumerate(plan.sites):
        name = data.draw(st.sampled_from([field.name for field in dataclasses.fields(SiteKey)]))
        now = data.draw(keys.filter(lambda key, name=name, old=old: getattr(key, name) != getattr(old.key, name)))
        moved = dataclasses.replace(old, key=dataclasses.replace(old.key, **{name: getattr(now, name)}))
        changed.append(dataclasses.replace(plan, sites=(*plan.sites[:at], moved, *plan.sites[at + 1 :])))
    assert plan.hash not in {one.hash for one in changed}
    assert dataclasses.replace(plan, about={"note": "x"}).hash == plan.hash


@PROFILE
@given(st.binary(max_size=200), plans, st.integers(0, 10_000))
def test_a_file_that_was_hit_by_anything_is_that_plan_or_one_error(tmp_path_factory, noise, plan, at):
    from opguard_core.errors import PlanError

    path = tmp_path_factory.mktemp("plan") / "plan.json"
    content = orjson.dumps(plan.to_dict())
    path.write_bytes(content[: at % (len(content) + 1)] + noise)
    try:
        assert load_plan(path).hash == plan.hash
    except PlanError as error:
        assert error.as_dict()["slug"] in ("plan-damaged", "plan-newer")
