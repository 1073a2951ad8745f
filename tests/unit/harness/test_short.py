"""The short answer says what, where, why, what next and where to look."""

from opguard_harness.report.short import short_answer
from tests.support.answers import answer, pivot


def test_diverged_names_both_places_the_origin_and_the_next_step():
    lines = short_answer(answer("diverged"))
    assert lines[0] == "diverged    step 3, forward, rank 0: aten.mul.Tensor out.0, after 10 equal pairs"
    assert lines[1] == "reference   train.py:20 in main | loss * share"
    assert lines[2] == "suspect     train.py:31 in main | token_loss(model, batch) * share"
    assert lines[3].startswith("origin      argument: ")
    assert lines[4].startswith("next        ")
    assert lines[5] == "traces      /out/reference/trace  /out/suspect/trace"


def test_a_side_without_the_operator_is_said():
    lines = short_answer(answer("diverged", pivot=pivot(reference=None, origin="structure")))
    assert lines[1] == "reference   (this side has no such operator)"


def test_other_possible_origins_and_contract_conflicts_are_said():
    contract = [{"key": "torch.version", "severity": "arithmetic", "reference": "a", "suspect": "b"}]
    value = answer("diverged", pivot=pivot(origin="operator", origin_alternatives=["mutated"]), contract=contract)
    line = short_answer(value)[3]
    assert "operator (or mutated)" in line
    assert "torch.version" in line


def test_identical_says_over_what_and_names_isolated_differences():
    lines = short_answer(answer("identical", isolated=[pivot()]))
    assert lines[0] == "identical   10 pairs of boundaries, 30 tensors, 4096 bytes"
    assert "steps [0, 6]" in lines[1]
    assert "1 that ended without effect" in lines[2]


def test_inconclusive_says_why_and_what_to_do():
    lines = short_answer(answer("inconclusive"))
    assert lines[0] == "inconclusive torn: A trace stops early."
    assert lines[1] == "next        Run again."
