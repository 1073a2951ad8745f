"""The short answer says what, where, why, what next and where to look."""

import pytest

from opguard_harness.report.short import short_answer
from tests.support.answers import answer, pivot, place

FILTERED = {**answer("identical")["compared"], "filtered": {"pairs": 28, "differences": 28}}


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


def test_a_backward_operator_is_shown_with_the_forward_work_it_belongs_to():
    ours, theirs = place("train.py", 27, "loss.backward()"), place("model.py", 33, "probs.topk(k)")
    lines = short_answer(answer("diverged", pivot=pivot(reference=ours, forward={"reference": theirs, "suspect": None}, phase="backward")))
    assert lines[1] == "reference   train.py:27 in main | loss.backward(), backward of model.py:33 in main | probs.topk(k)"
    assert lines[2] == "suspect     train.py:31 in main | token_loss(model, batch) * share"


def test_for_an_operator_that_a_side_lacks_it_is_said_who_reads_what_it_would_have_made():
    readers = {"reference": place("train.py", 29, "opt.step()"), "suspect": place("loop.py", 9, "self.opt.step()")}
    near = [{"what": "first-consumer", "operator": "aten.lerp_.Scalar", "seq": {}, **readers}]
    lines = short_answer(answer("diverged", pivot=pivot(suspect=None, origin="structure", near=near)))
    assert lines[2] == "suspect     (this side has no such operator; loop.py:9 in main | self.opt.step() reads what it would have made)"


def made(operator, side, at):
    return {"what": "producer", "operator": operator, "seq": {}, "reference": None, "suspect": None, side: at}


def test_what_each_side_read_there_is_said_by_where_it_was_made():
    """A call of a helper that one side lacks: the place is where both read, and looks the same on both."""
    ours = made("aten.cat.default", "reference", place("parallel.py", 6, "torch.cat([b, a], dim)"))
    theirs = made("aten.arange.default", "suspect", place("train.py", 12, "torch.arange(8)"))
    first, second = "parallel.py:6 in main | torch.cat([b, a], dim)", "train.py:12 in main | torch.arange(8)"
    said = f"The reference reads what {first} made, the suspect what {second} made."
    for slot, near, told in [
        ("in.1", [ours, theirs], True),
        ("in.1", [ours], False),
        ("in.1", [ours, made("aten.cat.default", "suspect", place("other.py", 9, "torch.cat([b, a], dim)"))], False),
        ("opt.state.step", [ours, theirs], False),
    ]:
        line = short_answer(answer("diverged", pivot=pivot(origin="permutation", slot=slot, near=near)))[3]
        assert (said in line) is told


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


def test_a_pattern_of_calls_that_neither_side_used_has_a_line():
    """A mistyped `--callsites` would otherwise read as if the calls had been looked at."""

    def ranks(*unused):
        return {"0": {"gaps": {}, "observed": {"callsites": {"patterns": ["my_ext.*"], "places": 0, "unused": list(unused)}}}}

    lines = short_answer(answer("diverged", coverage={"reference": ranks("my_ext.*"), "suspect": ranks("my_ext.*")}))
    assert lines[-2] == "calls       --callsites my_ext.*: names no call that ran"
    one = short_answer(answer("diverged", coverage={"reference": ranks("my_ext.*"), "suspect": ranks()}))
    assert one == short_answer(answer("diverged"))


def reason(slug):
    return {"slug": slug, "text": f"Said about {slug} \x1b[31m.", "fix": f"Do about {slug}."}


@pytest.mark.parametrize("slug", ["precision-policy", "unseeded", "runs-differ"])
def test_what_keeps_a_place_from_being_a_bugs_place_is_said_where_the_origin_is(slug):
    lines = short_answer(answer("diverged", reasons=[reason("narrowed-search"), reason(slug)]))
    assert f"Said about {slug} \\x1b[31m." in lines[3]
    assert lines[4] == f"next        Do about {slug}."
    lines = short_answer(answer("inconclusive", reasons=[reason("torn-trace"), reason(slug)]))
    assert lines[1] == f"next        Do about {slug}. Then: Do about torn-trace."


def test_identical_says_that_equal_is_not_right():
    lines = short_answer(answer("identical", scope={"limit": "A bug that both have is invisible."}))
    assert lines[3] == "limits      A bug that both have is invisible."
    assert short_answer(answer("identical"))[3] == "limits      none"


def test_filters_are_named_with_what_they_did_in_one_more_line():
    found = [{"id": f"f{number}", "hits": number, "refused": int(number == 1)} for number in range(8)]
    for verdict in ("identical", "diverged", "inconclusive"):
        plain, lines = short_answer(answer(verdict)), short_answer(answer(verdict, filters=found, compared=FILTERED))
        assert len(lines) == len(plain) + 1 <= 7
        said = "f0 hid 0, f1 hid 1 and was refused, f2 hid 2, f3 hid 3, f4 hid 4, f5 hid 5, and 2 more; 28 pairs of boundaries are hidden"
        assert lines[-2] == f"filters     {said}"


def test_a_candidate_is_named_with_the_evidence_id_that_a_filter_needs():
    boundary = {key: pivot()[key] for key in ("rank", "slot", "seq", "reference", "suspect")}
    lines = short_answer(answer("inconclusive", candidates=[{"reason": "torn-trace", **boundary}]))
    assert lines[3] == "candidate   train.py:31 in main | token_loss(model, batch) * share | out.0 of suspect:0:9"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"origin": "structure", "slot": "in.0"}, "the two sides read different values there"),
        ({"origin": "structure", "slot": "in.0", "suspect": None}, "one side does work that the other one lacks"),
        ({"origin": "structure", "slot": "out.0"}, "one side does work that the other one lacks"),
        ({"origin": "operator", "operator": "c10d.recv_.default"}, "what this rank hands in is equal and what it gets differs"),
        ({"origin": "operator", "operator": "aten.mul.Tensor"}, "all inputs and arguments are equal"),
    ],
)
def test_the_origin_is_told_in_words_that_are_true_of_the_pair(given, told):
    line = short_answer(answer("diverged", pivot=pivot(**given)))[3]
    assert told in line
