"""Benign filters: one named difference is hidden and counted; what matters for training never is, whatever a filter names."""

from dataclasses import replace

import pytest

from opguard_core.certify import filtered
from opguard_core.certify.filters import Filter, Site, parse_filters
from opguard_core.certify.root import RootWalk
from opguard_core.errors import FilterInvalid
from tests.support.script import Held
from tests.unit.certify.conftest import slugs
from tests.unit.certify.test_origins import clone, in_step

SIDES = clone(), clone(Held(9))
EVIDENCE = ["/traces/suspect#rank=0&seq=7"]


def rule(text, operator, slot="out.0", *, function="forward", file="model.py", side="suspect", **more):
    """A filter of one place."""
    site = {"file": file, "function": function, "text": text}
    return {"operator": operator, "slot": slot, side: site, "reason": "only logged", "evidence": EVIDENCE, **more}


VALUE = rule("aside(x)", "aten.sin.default", id="value")
PRINT = rule("print(aside)", "aten._local_scalar_dense.default", "in.0", id="print")
CLONE = rule("h.clone()", "aten.clone.default", id="clone")


@pytest.fixture
def wide(monkeypatch):
    """In a training of 17 operators one is more than 5 %."""
    monkeypatch.setattr(filtered, "MAX_SHARE", 1.0)


def kept_aside(content, *, more=(), name="", read=True, at="aside(x)", line=50):
    """A value that only a log line reads."""

    def change(s, t):
        aside = s.op("aten.sin.default", [t["x"]], (4, 8), content, at=at, line=line, name=name, more=more)
        if read:
            s.read(aside, at="print(aside)")
            s.free(aside)

    return in_step(1, "after mm", change)


def counts(verdict, key="hits"):
    return {entry["id"]: entry[key] for entry in verdict.filters}


# -- hiding ------------------------------------------------------------------------------------------------------------


def test_a_benign_difference_is_ignored_counted_and_named(judge, wide):
    sides = kept_aside(500), kept_aside(501)
    assert judge(*sides).verdict == "diverged"
    verdict = judge(*sides, compare={"filters": [VALUE, PRINT]})
    assert (verdict.verdict, verdict.reasons) == ("identical", [])
    assert counts(verdict) == {"print": 1, "value": 1}
    assert verdict.compared["filtered"] == {"pairs": 2, "differences": 2}
    (hidden,) = verdict.filters[1]["hidden"]
    assert (hidden["step"], hidden["operator"], hidden["suspect"]["text"]) == (1, "aten.sin.default", "aside(x)")
    assert verdict.filters[1]["reason"] == "only logged"
    assert verdict.filters[1]["evidence"] == EVIDENCE


def test_a_filter_hides_one_difference_and_neither_its_cause_nor_its_effect(judge, wide):
    verdict = judge(kept_aside(500), kept_aside(501), compare={"filters": [PRINT]})
    assert (verdict.verdict, verdict.pivot.suspect.text) == ("diverged", "aside(x)")
    verdict = judge(kept_aside(500), kept_aside(501), compare={"filters": [VALUE]})
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["filtered-difference"])


def test_a_value_alive_at_the_end_can_be_declared_harmless(judge, wide):
    sides = kept_aside(500, read=False), kept_aside(501, read=False)
    before = judge(*sides)
    assert (before.verdict, slugs(before)) == ("inconclusive", ["unresolved-difference"])
    assert [(entry["reason"], entry["slot"], entry["suspect"]["text"]) for entry in before.candidates] == [
        ("unresolved-difference", "out.0", "aside(x)")
    ]
    verdict = judge(*sides, compare={"filters": [VALUE]})
    assert (verdict.verdict, verdict.candidates) == ("identical", [])


def test_what_follows_from_a_hidden_difference_is_not_called_equal(judge, wide):
    verdict = judge(*SIDES, compare={"filters": [CLONE]})
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["filtered-difference"])
    assert counts(verdict) == {"clone": 1}
    assert verdict.candidates[0]["suspect"]["text"] == "h.clone()"


def test_looking_past_a_hidden_cause_has_an_end(judge, wide, monkeypatch):
    """Everything after a hidden cause differs; there is no verdict, and the work does not grow with all that follows."""
    walks = []
    walk = RootWalk.from_pair
    monkeypatch.setattr(RootWalk, "from_pair", lambda self, node: walks.append(node) or walk(self, node))
    monkeypatch.setattr("opguard_core.certify.judge.MAX_STEPPED_OVER", 3)
    verdict = judge(*SIDES, steps=(6, 6), compare={"filters": [CLONE]})
    assert (verdict.verdict, verdict.reasons[0].slug) == ("inconclusive", "filtered-difference")
    assert len(walks) == 3


def test_another_difference_is_found_beside_a_benign_one(judge, wide):
    def both(aside, content):
        def change(s, place, t):
            kept_aside(aside)(s, place, t)
            clone(content)(s, place, t)

        return change

    verdict = judge(both(500, None), both(501, Held(9)), compare={"filters": [VALUE, PRINT]})
    assert (verdict.verdict, verdict.pivot.suspect.text) == ("diverged", "h.clone()")


def test_a_second_slot_that_differs_keeps_the_boundary_visible(judge, wide):
    """A filter for a scratch output must not hide the result beside it."""

    def split(first, second):
        def change(s, t):
            t["h"] = s.op("aten.split.default", [t["h"]], (4, 8), first, at="split(h)", line=30, more=[((9,), second)])

        return in_step(1, "after mm", change)

    only_scratch = rule("split(h)", "aten.split.default", "out.1", id="scratch")
    both = [only_scratch, rule("split(h)", "aten.split.default", "out.0", id="result")]
    verdict = judge(split(1, 2), split(3, 4), compare={"filters": [only_scratch]})
    assert (verdict.verdict, verdict.pivot.slot) == ("diverged", "out.0")
    assert (counts(verdict), counts(verdict, "partly")) == ({"scratch": 0}, {"scratch": 1})
    verdict = judge(split(1, 2), split(3, 4), compare={"filters": both})
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["filtered-difference"])
    assert counts(verdict) == {"result": 1, "scratch": 1}
    assert verdict.compared["filtered"] == {"pairs": 1, "differences": 2}


def test_filters_that_hide_too_much_leave_no_verdict(judge):
    verdict = judge(kept_aside(500), kept_aside(501), compare={"filters": [VALUE, PRINT]})
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["filters-too-wide"])


def test_below_the_limit_there_is_a_verdict(judge):
    """Two of 2 x 24 pairs are 4 %."""

    def long(content):
        def change(s, place, t):
            for at in range(20 if place == "batch" else 0):
                s.free(s.op("aten.neg.default", [t["x"]], (4, 8), at=f"pad{at}(x)", line=60 + at))
            kept_aside(content)(s, place, t)

        return change

    assert judge(long(500), long(501), compare={"filters": [VALUE, PRINT]}).verdict == "identical"


def test_a_filter_that_matches_nothing_is_listed_with_no_hits(judge):
    verdict = judge(*SIDES, compare={"filters": [rule("h.clone()", "aten.clone.default", file="other.py", id="never")]})
    assert counts(verdict) == {"never": 0}
    assert verdict.filters[0]["hidden"] == []
    assert (verdict.verdict, verdict.reasons) == ("diverged", [])


def test_without_filters_nothing_is_said_about_them(judge):
    verdict = judge(*SIDES)
    assert verdict.filters == []
    assert "filtered" not in verdict.compared


# -- matching ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "hit"),
    [
        (CLONE, True),
        ({**CLONE, "operator": "aten.clone_.out"}, True),
        ({**CLONE, "operator": "aten.mul.Tensor"}, False),
        ({**CLONE, "slot": "out.1"}, False),
        (rule(" h . clone(\n )", "aten.clone.default", id="a"), True),
        (rule("h.clone(x)", "aten.clone.default", id="a"), False),
        (rule("h.clone()", "aten.clone.default", function="backward", id="a"), False),
        (rule("h.clone()", "aten.clone.default", file="train.py", id="a"), False),
        (rule("h.clone()", "aten.clone.default", side="reference", id="a"), True),
        ({**CLONE, "reference": CLONE["suspect"]}, True),
        ({**CLONE, "reference": {**CLONE["suspect"], "text": "h.copy()"}}, False),
    ],
)
def test_a_filter_matches_one_place_operator_and_slot(judge, given, hit):
    (entry,) = judge(*SIDES, compare={"filters": [given]}).filters
    assert (entry["hits"] > 0) == hit


def test_a_filter_follows_its_expression_to_another_line(judge, wide):
    verdict = judge(kept_aside(500, line=50), kept_aside(501, line=71), compare={"filters": [VALUE, PRINT]})
    assert verdict.verdict == "identical"


# -- what must not be hidden -------------------------------------------------------------------------------------------


def refused(judge, sides, given, what):
    """A filter that names a protected difference changes nothing but is reported."""
    before, verdict = judge(*sides), judge(*sides, compare={"filters": [given]})
    assert counts(verdict) == {given["id"]: 0}
    assert verdict.filters[0]["refused"] >= 1
    assert (verdict.verdict, verdict.pivot, verdict.isolated) == (before.verdict, before.pivot, before.isolated)
    assert slugs(verdict) == [*slugs(before), "filter-refused"]
    assert what in verdict.reasons[-1].text
    return verdict


def test_the_result_of_an_update_is_never_hidden(judge, wide):
    def update(content):
        def change(s, t):
            t["w"] = s.op("aten.mul_.Tensor", [t["w"]], (8, 8), content, into=t["w"], at="decay(w)", line=30, phase="optimizer")

        return in_step(0, "after backward", change)

    given = rule("decay(w)", "aten.mul_.Tensor", "mut.0", id="update")
    assert refused(judge, (update(1), update(2)), given, "an update of parameters").verdict == "diverged"


def test_a_gradient_is_never_hidden(judge, wide):
    def backward(content):
        def change(s, t):
            t["g"] = s.op("aten.neg.default", [t["g"]], (8, 8), content, at="hook(g)", line=30, phase="backward")

        return in_step(0, "after backward", change)

    assert refused(judge, (backward(1), backward(2)), rule("hook(g)", "aten.neg.default", id="grad"), "a gradient").verdict == "diverged"


def test_an_operand_of_the_optimizer_is_never_hidden(judge, wide):
    """A gradient that is changed by hand, between backward and the update."""

    def scaled(content):
        def change(s, t):
            t["g"] = s.op("aten.mul.Tensor", [t["g"]], (8, 8), content, at="g * scale", line=30, phase="data")

        return in_step(0, "after backward", change)

    assert refused(judge, (scaled(1), scaled(2)), rule("g * scale", "aten.mul.Tensor", id="operand"), "an update").verdict == "diverged"


def test_the_loss_told_to_python_is_never_hidden(judge, wide):
    """The backward pass went through what is printed, and only what is printed differs."""

    def told(content):
        def change(s, t):
            t["part"] = s.op("aten.mul.Tensor", [t["a"]], (), 1, at="part", line=30)
            s.read(t["part"].holding(content), at="part.item()", line=31)
            s.op("aten.mul.Tensor", [t["a"]], (4, 8), at="loss.backward()", line=7, phase="backward", forward=s.seq - 2)

        return in_step(1, "after gelu", change)

    given = rule("part.item()", "aten._local_scalar_dense.default", "in.0", id="loss")
    assert refused(judge, (told(1), told(2)), given, "the loss").verdict == "diverged"


def test_the_scalars_a_backward_pass_starts_from_are_the_loss(judge, wide):
    """``(loss * scale).backward()``: both are the loss, also where nothing went back through them."""

    def start(content, told):
        def change(s, t):
            loss = s.op("aten.mean.default", [t["a"]], (), content, at="mean(a)", line=30)
            scaled = s.op("aten.mul.Tensor", [loss], (), 5, at="loss * scale", line=31)
            s.op("aten.ones_like.default", [scaled], (), 1, at="scaled.backward()", line=32, phase="backward")
            s.read(loss.holding(told), at="loss.item()", line=33)

        return in_step(1, "after gelu", change)

    made, said = rule("mean(a)", "aten.mean.default", id="made"), rule("loss.item()", "aten._local_scalar_dense.default", "in.0", id="said")
    refused(judge, (start(1, 1), start(2, 2)), made, "the loss")
    refused(judge, (start(1, 1), start(1, 2)), said, "the loss")


def test_a_loss_whose_first_gradient_was_given_is_the_loss(judge, wide):
    """``(mean(a) + penalty).backward(gradient)``: the pass goes through the mean and leaves no trace of the sum."""

    def start(content, told):
        def change(s, t):
            mean = s.op("aten.mean.default", [t["a"]], (), 3, at="mean(a)", line=30)
            through = s.seq - 1
            loss = s.op("aten.add.Tensor", [mean], (), content, at="mean(a) + penalty", line=31)
            s.op("aten.expand.default", [mean], (4, 8), 1, at="loss.backward(gradient)", line=32, phase="backward", forward=through)
            s.read(loss.holding(told), at="loss.item()", line=33)

        return in_step(1, "after gelu", change)

    made, said = (
        rule("mean(a) + penalty", "aten.add.Tensor", id="made"),
        rule("loss.item()", "aten._local_scalar_dense.default", "in.0", id="said"),
    )
    refused(judge, (start(1, 1), start(2, 2)), made, "the loss")
    refused(judge, (start(1, 1), start(1, 2)), said, "the loss")


def test_named_state_and_its_boundary_are_never_hidden(judge, wide):
    def write(content):
        def change(s, t):
            s.op("aten.fill_.Scalar", [t["w"]], (8, 8), content, into=t["w"], at="w.fill_(v)", line=30, name="param:w")

        return in_step(1, "after update", change)

    refused(
        judge, (write(1), write(2)), rule("w.fill_(v)", "aten.fill_.Scalar", "mut.0", id="state"), "the state that a step leaves behind"
    )


def test_the_initial_value_of_what_becomes_state_is_never_hidden(judge, wide):
    """A parameter is filled before it belongs to a module and has a name."""

    def initialise(content):
        def change(s, t):
            fresh = s.given((8, 8), 3)
            made = s.op("aten.uniform_.default", [], (8, 8), content, into=fresh, at="init(w)", line=30)
            s.op("aten.abs.default", [replace(made, name="param:late")], (8, 8), 6, at="abs(w)", line=31)

        return in_step(1, "batch", change)

    given = rule("init(w)", "aten.uniform_.default", "mut.0", id="init")
    refused(judge, (initialise(1), initialise(2)), given, "the state that a step leaves behind")


def test_an_operator_that_raises_on_one_side_is_never_hidden(judge, wide):
    def checked(content, args):
        def change(s, t):
            s.op("aten.index.Tensor", [t["x"].holding(content)], (4, 8), 4, at="table[ids]", line=30, args=args)

        return in_step(1, "after mm", change)

    given = rule("table[ids]", "aten.index.Tensor", "in.0", id="raise")
    refused(judge, (checked(1, ""), checked(2, ";raised=IndexError")), given, "the exception that ends a side")


def test_an_average_that_outlives_the_step_is_never_hidden(judge, wide):
    def average(content):
        def change(s, t):
            s.op("aten.add_.Tensor", [t["ema"], t["w"]], (8, 8), content, into=t["ema"], at="ema.add_(w)", line=30, phase="data")

        return in_step(1, "end", change)

    given = rule("ema.add_(w)", "aten.add_.Tensor", "mut.0", id="average")
    refused(judge, (average(1), average(2)), given, "the state that a step leaves behind")


# -- what a filter is --------------------------------------------------------------------------------------------------

GOOD = rule("f(x)", "aten.add.Tensor")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"suspect": None}, "names no place"),
        ({"suspect": {"file": "model.py"}}, "too wide"),
        ({"suspect": {"file": "model.py", "function": "f"}}, "too wide"),
        ({"suspect": {"file": "model.py", "function": "f", "text": " "}}, "too wide"),
        ({"suspect": {"file": "m", "function": "f", "text": "x", "line": 3}}, "too wide"),
        ({"suspect": "model.py"}, "too wide"),
        ({"reference": {"file": ""}}, "too wide"),
        ({"suspect": {"file": "m", "function": "f", "text": "x" * 5000}}, "longer than"),
        ({"operator": ""}, "needs one operator"),
        ({"operator": "*"}, "needs one operator"),
        ({"operator": 3}, "not text"),
        ({"slot": ""}, "needs one slot"),
        ({"slot": "out.*"}, "needs one slot"),
        ({"reason": ""}, "no reason"),
        ({"reason": "  "}, "no reason"),
        ({"reason": "x" * 501}, "501 characters"),
        ({"author": "x" * 101}, "101 characters"),
        ({"evidence": []}, "no evidence"),
        ({"evidence": None}, "no evidence"),
        ({"evidence": "trace#rank=0&seq=1"}, "no evidence"),
        ({"evidence": ["I looked at it"]}, "no evidence"),
        ({"evidence": EVIDENCE * 5}, "no evidence"),
        ({"id": "two words"}, "no id"),
        ({"id": 3}, "no id"),
        ({"colour": "red"}, "'colour'"),
    ],
)
def test_a_filter_that_names_more_or_less_than_one_difference_is_refused(changes, said):
    with pytest.raises(FilterInvalid) as caught:
        parse_filters([{**GOOD, **changes}])
    assert said in caught.value.message
    assert caught.value.as_dict()["fix"].endswith(".")


def test_a_filter_is_an_object():
    with pytest.raises(FilterInvalid, match="not list"):
        parse_filters([[]])


def test_two_filters_with_one_id_are_refused():
    with pytest.raises(FilterInvalid, match="Two filters"):
        parse_filters([GOOD, GOOD])


def test_the_id_follows_from_what_is_hidden_and_the_order_from_the_id():
    spaced = rule(" f( x ) ", "aten.add_.out", reason="another reason")
    other = rule("f(x)", "aten.add.Tensor", "out.1")
    assert parse_filters([GOOD])[0].id == parse_filters([spaced])[0].id != parse_filters([other])[0].id
    assert parse_filters([GOOD])[0].names_same(parse_filters([spaced])[0])
    assert parse_filters([GOOD, other]) == parse_filters([other, GOOD])


def test_a_filter_survives_its_plain_form():
    (made,) = parse_filters([{**GOOD, "author": "A. Person", "created": "2026-01-02T03:04:05Z"}])
    assert isinstance(made, Filter)
    assert made.suspect == Site("model.py", "forward", "f(x)")
    assert parse_filters([made.as_dict()]) == parse_filters([made]) == [made]
