"""The validator accepts and refuses what jsonschema does, on our schemas."""

import copy

import jsonschema
import pytest

from opguard_harness.answer.schema import checked, compare_schema, error_answer
from opguard_harness.answer.validate import faults
from opguard_harness.errors import Internal
from tests.support.answers import answer, place

MUTATIONS = {
    "no verdict": lambda a: a.pop("verdict"),
    "unknown verdict": lambda a: a.update(verdict="different"),
    "schema 2": lambda a: a.update(schema=2),
    "schema true": lambda a: a.update(schema=True),
    "extra key": lambda a: a.update(more=1),
    "no pivot": lambda a: a.update(pivot=None),
    "step as text": lambda a: a["pivot"].update(step="3"),
    "step as boolean": lambda a: a["pivot"].update(step=True),
    "negative rank": lambda a: a["pivot"].update(rank=-1),
    "unknown origin": lambda a: a["pivot"].update(origin="magic"),
    "place without text": lambda a: a["pivot"]["suspect"].pop("text"),
    "place with more": lambda a: a["pivot"]["suspect"].update(colour="red"),
    "stack without a side": lambda a: a["pivot"]["stack"].pop("suspect"),
    "reason without fix": lambda a: a["reasons"].append({"slug": "x", "text": "y"}),
    "contract without severity": lambda a: a["contract"].append({"key": "k", "reference": 1, "suspect": 2}),
    "negative seconds": lambda a: a["seconds"].update(total=-1.0),
    "exit as text": lambda a: a["exit"].update(reference="0"),
    "prefix without bytes": lambda a: a["prefix"].pop("bytes"),
}


@pytest.mark.parametrize("verdict", ["diverged", "identical", "inconclusive"])
def test_a_documented_answer_is_valid_for_both_validators(verdict):
    value = answer(verdict)
    assert faults(value, compare_schema()) == []
    jsonschema.validate(value, compare_schema())
    assert checked(value) is value


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_answer_is_refused_by_both_validators(name):
    value = copy.deepcopy(answer("diverged"))
    MUTATIONS[name](value)
    assert faults(value, compare_schema())
    assert not jsonschema.Draft202012Validator(compare_schema()).is_valid(value)
    with pytest.raises(Internal):
        checked(value)


def test_the_schema_itself_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(compare_schema())


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.update(verdict="identical", pivot=None, prefix={"pairs": 0, "tensors": 0, "bytes": 0}),
        lambda a: a.update(verdict="identical"),
        lambda a: a.update(verdict="inconclusive", reasons=[]),
    ],
    ids=["identical over nothing", "identical with a pivot", "inconclusive without a reason"],
)
def test_a_verdict_that_its_facts_do_not_carry_is_refused(change):
    value = answer("diverged")
    change(value)
    assert faults(value, compare_schema())
    assert not jsonschema.Draft202012Validator(compare_schema()).is_valid(value)


def test_an_error_answer_is_documented():
    value = error_answer({"slug": "usage", "text": "t", "fix": "f"})
    assert faults(value, compare_schema()) == []


def test_a_pivot_may_lack_one_side():
    value = answer("diverged")
    value["pivot"]["suspect"] = None
    assert faults(value, compare_schema()) == []


def test_messages_name_the_path():
    value = answer("diverged")
    value["pivot"]["reference"] = {**place(), "line": "1"}
    assert any("$.pivot.reference.line" in fault for fault in faults(value, compare_schema()))


def test_an_unknown_keyword_is_refused_rather_than_skipped():
    with pytest.raises(ValueError, match="patternProperties"):
        faults({}, {"type": "object", "patternProperties": {}})
