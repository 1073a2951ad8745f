"""Benign filters: a declared place is ignored and counted; too many hits are a reason."""

import pytest

from opguard_core.certify import summary
from opguard_core.certify.filters import Filter, parse_filters
from opguard_core.errors import ConfigError
from tests.support.script import Held
from tests.unit.certify.test_origins import clone, in_step

SIDES = clone(), clone(Held(9))


def filtered(judge, *filters):
    return judge(*SIDES, compare={"filters": filters})


def kept_aside(content):
    """A value that only a log line reads."""

    def change(s, t):
        aside = s.op("aten.sin.default", [t["x"]], (4, 8), content, at="aside(x)", line=50)
        s.read(aside, at="print(aside)")
        s.free(aside)

    return in_step(1, "after mm", change)


def test_a_benign_difference_is_ignored_and_counted(judge, monkeypatch):
    monkeypatch.setattr(summary, "MAX_SHARE", 1.0)
    rules = [{"id": "value", "text": "aside(x)"}, {"id": "print", "text": "print(aside)"}]
    verdict = judge(kept_aside(500), kept_aside(501), compare={"filters": rules})
    assert (verdict.verdict, verdict.reasons) == ("identical", [])
    assert verdict.filters == [{"id": "value", "hits": 1}, {"id": "print", "hits": 1}]


def test_what_follows_from_a_hidden_difference_is_not_called_equal(judge, monkeypatch):
    monkeypatch.setattr(summary, "MAX_SHARE", 1.0)
    verdict = filtered(judge, {"id": "benign", "file": "model.py", "text": "h.clone()"})
    assert verdict.verdict == "inconclusive"
    assert [reason.slug for reason in verdict.reasons] == ["filtered-difference"]
    assert verdict.filters == [{"id": "benign", "hits": 1}]


def test_another_difference_is_found_beside_a_benign_one(judge, monkeypatch):
    monkeypatch.setattr(summary, "MAX_SHARE", 1.0)

    def twist(s, place, t):
        kept_aside(501)(s, place, t)
        clone(Held(9))(s, place, t)

    def plain(s, place, t):
        kept_aside(500)(s, place, t)
        clone()(s, place, t)

    verdict = judge(plain, twist, compare={"filters": [{"id": "benign", "text": "aside(x)"}]})
    assert (verdict.verdict, verdict.pivot.suspect.text) == ("diverged", "h.clone()")


def test_a_filter_that_matches_nothing_is_counted_as_such(judge):
    verdict = filtered(judge, Filter("never", file="other.py"))
    assert verdict.filters == [{"id": "never", "hits": 0}]
    assert verdict.verdict == "diverged"


def test_filters_that_swallow_too_much_make_the_verdict_inconclusive(judge):
    verdict = filtered(judge, {"id": "all", "file": "model.py"})
    assert verdict.verdict == "inconclusive"
    assert "filters-too-wide" in [reason.slug for reason in verdict.reasons]


@pytest.mark.parametrize(
    ("filter_", "hit"),
    [
        ({"id": "a", "operator": "aten.clone.default"}, True),
        ({"id": "a", "operator": "clone"}, True),
        ({"id": "a", "operator": "aten.mul.Tensor"}, False),
        ({"id": "a", "operator": "clone", "slot": "out.0"}, True),
        ({"id": "a", "operator": "clone", "slot": "out.1"}, False),
        ({"id": "a", "site": {"file": "model.py", "function": "forward", "text": "h . clone( )"}}, True),
        ({"id": "a", "function": "forward", "text": "h.clone(x)"}, False),
        ({"id": "a", "function": "backward"}, False),
    ],
)
def test_a_filter_matches_by_place_operator_and_slot(judge, filter_, hit):
    verdict = filtered(judge, filter_)
    assert (verdict.filters[0]["hits"] > 0) == hit


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"id": ""},
        {"id": "a"},
        {"id": "a", "slot": "out.0"},
        {"id": "a", "file": 3},
        {"id": "a", "file": "x", "colour": "red"},
        {"file": "x"},
    ],
)
def test_a_filter_that_means_nothing_is_refused(bad):
    with pytest.raises(ConfigError) as caught:
        parse_filters([bad])
    assert caught.value.as_dict()["fix"].endswith(".")


def test_parsing_copies_and_resets_the_count():
    given = Filter("a", file="x", hits=7)
    (copy,) = parse_filters([given])
    copy.hits += 1
    assert (given.hits, copy.hits) == (7, 1)
