"""What becomes of the determinism knobs is said of each: applied, left alone, impossible, or undone by the program."""

import pytest

from opguard_core.contract.applied import applied_knobs
from opguard_core.contract.knobs import KNOBS, launch_report
from opguard_harness.answer.schema import compare_schema
from opguard_harness.answer.validate import faults
from opguard_harness.report.knob_page import knob_page


def contract(**changes):
    """The contract of a run in which every knob took its value."""
    rank = {knob.name: {"before": None, "after": knob.value} for knob in KNOBS if knob.when == "rank"}
    return {"run.deterministic": True, "knobs.launch": launch_report({}), "knobs.rank": rank, **changes}


def problems(**changes):
    return {knob["name"]: knob["problem"] for knob in applied_knobs(contract(**changes)) if knob["problem"]}


def test_every_knob_is_listed_with_before_and_after():
    found = applied_knobs(contract())
    assert [(knob["name"], knob["after"]) for knob in found] == [(knob.name, knob.value) for knob in KNOBS]
    assert not any(knob["problem"] for knob in found)
    schema = compare_schema()
    assert not [fault for knob in found for fault in faults(knob, schema["$defs"]["knob"], root=schema)]


def test_a_run_without_the_flag_has_none():
    assert applied_knobs({**contract(), "run.deterministic": False}) == []
    assert applied_knobs({}) == []


def test_a_variable_that_the_user_had_set_is_told():
    assert problems(**{"knobs.launch": launch_report({"NCCL_ALGO": "Tree"})}) == {
        "NCCL_ALGO": "the environment had set it otherwise, which was left"
    }


def test_a_knob_that_this_torch_lacks_is_told():
    told = contract()
    told["knobs.rank"]["torch.backends.mkldnn.deterministic"] = {"not_applied": "AttributeError: no such setting"}
    assert [knob["problem"] for knob in applied_knobs(told) if knob["problem"]] == ["it could not be set: AttributeError: no such setting"]
    del told["knobs.rank"]["torch.backends.mkldnn.deterministic"]
    assert [knob["problem"] for knob in applied_knobs(told) if knob["problem"]] == ["nothing was recorded about it"]


@pytest.mark.parametrize(("fact", "knob"), [("flags.cudnn.benchmark", "torch.backends.cudnn.benchmark"), ("env.NCCL_PROTO", "NCCL_PROTO")])
def test_a_knob_that_the_program_undid_is_told(fact, knob):
    assert problems(**{fact: "LL128"}) == {knob: "the program set it to LL128 later"}
    assert problems(**{fact: {"unknown": "why"}}) == {}


def test_the_page_lists_each_with_value_reason_and_source():
    page = knob_page()
    for knob in KNOBS:
        assert f"## {knob.name} = {knob.value}" in page
        assert f"Source: {knob.source}." in page
        assert knob.why.split()[0] in page
