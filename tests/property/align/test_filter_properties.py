"""Claims: a filter never hides what matters for training, whatever it names; order means nothing; hits add up; without
filters nothing changes.

Differences are planted at any operator of made-up trainings; the filter is made of the very difference that was found.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from opguard_core.certify import filtered
from opguard_core.certify.answer import to_dict
from opguard_core.certify.compare import compare
from tests.property.align.test_planted_pivots import candidates, planted, run_of, shapes
from tests.support.synthetic import Corrupt, Insert, Instruction, Side, Site, gpt

settings.register_profile("filters", derandomize=True, deadline=None, max_examples=5, suppress_health_check=list(HealthCheck))
PROFILE = settings.get_profile("filters")
MANY = settings(PROFILE, max_examples=60)

PROTECTED = ("optimizer", "backward")
EVIDENCE = ["suspect:0:1"]


@pytest.fixture(autouse=True)
def no_limit(monkeypatch):
    """The share of hidden pairs is another promise, tested elsewhere."""
    monkeypatch.setattr(filtered, "MAX_SHARE", 1.0)


def rule_for(boundary, *, sides=("suspect",), **more):
    """The filter that names a boundary of an answer."""
    sites = {side: {key: boundary[side][key] for key in ("file", "function", "text")} for side in sides if boundary[side]}
    return {"operator": boundary["operator"], "slot": boundary["slot"], "reason": "planted", "evidence": EVIDENCE, **sites, **more}


def named(verdict):
    """Every boundary that an answer names and a filter could."""
    answer = to_dict(verdict)
    found = [*answer["rank_firsts"], *answer["isolated"], *answer["candidates"]]
    return [item for item in found if item["slot"] and (item["suspect"] or item["reference"])]


def gist(verdict):
    """An answer without what filters add to it."""
    answer = to_dict(verdict)
    answer["compared"].pop("filtered", None)
    answer["reasons"] = [entry for entry in answer["reasons"] if entry["slug"] != "filter-refused"]
    return {**answer, "filters": []}


def sides_of(shape, kind, choice):
    """Two runs of one program, the second with one planted difference."""
    program = gpt(shape)
    places = candidates(program)
    edit = planted(program, kind, places[choice % len(places)], choice)
    assume(edit is not None)
    return run_of(program), run_of(Side(program, [edit]))


def check_never_hidden(shape, kind, choice):
    reference, suspect = sides_of(shape, kind, choice)
    plain = compare(reference, suspect)
    assume(named(plain))
    for boundary in named(plain)[:2]:
        for sides in (("suspect",), ("reference", "suspect")):
            rule = rule_for(boundary, sides=sides)
            if not any(side in rule for side in sides):
                continue
            verdict = compare(reference, suspect, filters=[rule])
            if plain.verdict == "diverged":
                assert verdict.verdict != "identical", "every planted difference reaches the loss or an update"
            if boundary.get("phase") in PROTECTED:
                assert gist(verdict) == gist(plain)
                assert verdict.filters[0]["hits"] == 0


kinds = st.sampled_from(["corrupt", "arguments", "overwrite", "reseed"])
choices = st.integers(0, 2**31)


@PROFILE
@given(shapes, kinds, choices)
def test_a_difference_that_matters_is_never_hidden(shape, kind, choice):
    check_never_hidden(shape, kind, choice)


@pytest.mark.full
@pytest.mark.timeout(600)
@MANY
@given(shapes, kinds, choices)
def test_a_difference_that_matters_is_never_hidden_many_times(shape, kind, choice):
    check_never_hidden(shape, kind, choice)


@PROFILE
@given(shapes, choices)
def test_a_protected_difference_is_judged_as_if_there_were_no_filter(shape, choice):
    """Every operator of backward passes and updates in turn, not only those that come first by chance."""
    program = gpt(shape)
    places = [at for at in candidates(program) if program[at].phase in PROTECTED]
    at = places[choice % len(places)]
    reference, suspect = run_of(program), run_of(Side(program, [Corrupt(at)]))
    plain = compare(reference, suspect)
    assume(plain.pivot is not None and plain.pivot.suspect is not None)
    verdict = compare(reference, suspect, filters=[rule_for(named(plain)[0])])
    assert gist(verdict) == gist(plain)
    assert (verdict.filters[0]["hits"], verdict.filters[0]["refused"] > 0) == (0, True)
    assert "filter-refused" in [entry.slug for entry in verdict.reasons]


@PROFILE
@given(shapes)
def test_filters_that_name_nothing_that_differs_change_nothing(shape):
    program = gpt(shape)
    site = {"file": "model.py", "function": "Mlp.forward", "text": "F.gelu(x)"}
    boundary = {"operator": "aten.gelu.default", "slot": "out.0", "suspect": site}
    reference, suspect = run_of(program), run_of(program)
    assert gist(compare(reference, suspect, filters=[rule_for(boundary)])) == gist(compare(reference, suspect))


def logged(program, places, *, corrupt):
    """A side on which values nobody uses are computed at some places, by operators of their own; corrupted or not."""
    edits = []
    for number, at in enumerate(places):
        made = next(out for near in range(at, -1, -1) for out in program[near].outs if out.effect == "compute")
        site = Site("train.py", "probe", 90 + number, f"watch{number}(x)")
        out = made._replace(var=f"aside{number}", effect="compute", name="")
        args = "corrupted" if corrupt else ""
        aside = Instruction("aten.alias_copy.default", (made.var,), (out,), site=site, role="log", args=args)
        edits.append(Insert(at, aside))
    return Side(program, edits)


def log_places(program, choice):
    """A few places late in the last step, where everything has been computed."""
    last = program.find(0, operator="aten.gelu.default")
    return sorted({last[choice % len(last)] + 1, last[-1] + 2})


@PROFILE
@given(shapes, choices, st.permutations([0, 1, 2]))
def test_order_means_nothing_and_hits_add_up(shape, choice, order):
    program = gpt(shape)
    places = log_places(program, choice)
    reference, suspect = (run_of(logged(program, places, corrupt=corrupt)) for corrupt in (False, True))
    plain = compare(reference, suspect)
    found = {(item["suspect"]["text"], item["slot"]): item for item in named(plain) if item["suspect"]}
    assume(found)
    rules = [rule_for(item, id=f"rule-{number}") for number, item in enumerate(found.values())]
    rules += [rule_for(next(iter(found.values())), sides=("reference", "suspect"), id="again")]
    shuffled = [rules[at % len(rules)] for at in order if at < len(rules)]
    shuffled += [rule for rule in rules if rule not in shuffled]
    one, other = compare(reference, suspect, filters=rules), compare(reference, suspect, filters=shuffled)
    assert to_dict(one) == to_dict(other)
    assert sum(entry["hits"] for entry in one.filters) == one.compared["filtered"]["differences"] > 0
    assert one.compared["filtered"]["pairs"] <= one.compared["filtered"]["differences"]
    assert compare(reference, suspect, filters=[]) == plain
    assert one.verdict in ("identical", plain.verdict)
