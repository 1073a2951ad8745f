"""How a difference goes on: consumers in order, where the sides come together again, and what that counts it reaches."""

from __future__ import annotations

from opguard_core.certify import spreading as module
from opguard_core.certify.answer import to_dict
from tests.support.script import Held, Script
from tests.unit.certify.test_origins import T, clone, in_step


def said(spread):
    """Operator and results of each consumer."""
    return [(entry["operator"].split(".")[1], entry["results"]) for entry in spread["consumers"]]


def test_the_consumers_are_named_in_order_with_what_they_make_of_it(both):
    spread = both(clone(), clone(Held(77))).spread
    carried = [("gelu", "differ"), ("bernoulli", "differ"), ("sum", "differ")]
    assert said(spread) == [*carried, ("_local_scalar_dense", "told"), ("mm", "differ"), ("add_", "differ")]
    assert spread["total"] == 6
    assert spread["whole"]
    assert spread["rejoined"] is None
    assert all(entry["slot"].startswith("in.") for entry in spread["consumers"])
    assert all(None not in entry["seq"].values() for entry in spread["consumers"])


def test_what_counts_is_named_where_it_is_reached_first(both):
    spread = both(clone(), clone(Held(77))).spread
    assert {what: entry["suspect"]["text"] for what, entry in spread["reached"].items()} == {"read": "loss.item()", "update": "opt.step()"}
    assert spread["state"] == {"param": {"count": 1, "names": ["w"]}}


def absorbed(content):
    """A value that differs and one reader that gives the same all the same, beside the one that carries it on."""

    def change(s: Script, t: T) -> None:
        t["h"] = s.op("aten.clone.default", [t["h"]], (4, 8), Held(content), at="h.clone()", line=30)
        s.op("aten.gt.Scalar", [t["h"]], (4, 8), Held(5), at="h > 0", line=31)

    return in_step(1, "after mm", change)


def test_the_sides_come_together_where_results_are_the_same_again(both):
    spread = both(absorbed(77), absorbed(78)).spread
    assert said(spread)[:2] == [("gt", "same"), ("gelu", "differ")]
    assert spread["rejoined"]["suspect"]["text"] == "h > 0"


def test_work_that_one_side_does_alone_is_followed_on_that_side(both):
    def extra(s: Script, t: T) -> None:
        doubled = s.op("aten.mul.Tensor", [t["h"]], (4, 8), at="h * 2", line=40)
        t["h"] = s.op("aten.cos.default", [doubled], (4, 8), at="cos(h)", line=41)

    spread = both(None, in_step(1, "after mm", extra)).spread
    alone = [entry for entry in spread["consumers"] if entry["results"] == "alone"]
    assert alone
    assert all(list(entry["seq"].values()).count(None) == 1 for entry in alone)
    assert spread["reached"]["update"]["suspect"]["text"] == "opt.step()"


def test_the_loss_is_what_a_backward_pass_starts_from(both):
    def backward(s: Script, t: T) -> None:
        s.op("aten.ones_like.default", [t["loss"]], (), Held(1), at="loss.backward()", line=7, phase="backward")

    def run(content):
        change, start = clone(content), in_step(1, "after backward", backward)

        def twist(s: Script, place: str, t: T) -> None:
            change(s, place, t)
            start(s, place, t)

        return twist

    spread = both(run(Held(76)), run(Held(77))).spread
    assert spread["reached"]["loss"]["suspect"]["text"] == "d.sum()"


def test_identical_trainings_have_no_spread(judge):
    verdict = judge()
    assert verdict.spread is None
    assert "spread" not in to_dict(verdict)


def test_a_spread_beyond_the_bound_says_that_it_is_not_whole(both, monkeypatch):
    monkeypatch.setattr(module, "MAX_READS", 2)
    spread = both(clone(), clone(Held(77))).spread
    assert not spread["whole"]
    assert spread["total"] == 1


def test_more_consumers_than_are_shown_are_counted(both, monkeypatch):
    def crowd(content):
        def change(s: Script, t: T) -> None:
            t["h"] = s.op("aten.clone.default", [t["h"]], (4, 8), Held(content), at="h.clone()", line=30)
            for at in range(20):
                s.op("aten.sin.default", [t["h"]], (4, 8), at=f"sin(h, {at})", line=50 + at)

        return in_step(1, "after mm", change)

    spread = both(crowd(77), crowd(78)).spread
    assert len(spread["consumers"]) == module.CONSUMERS_SHOWN
    assert spread["total"] == 26


def test_a_pair_that_is_not_sure_is_one_consumer_and_not_one_of_each_side(both):
    def rewritten(value, names):
        def change(s: Script, t: T) -> None:
            made = s.op("aten.full.default", [], (4, 8), value, at=names[0], trivial=True)
            for at, name in enumerate(names[1:], 1):  # other words on the other side: paired by their order alone
                made = s.op("aten.neg.default", [made], (4, 8), value + 10 * at, at=name)
            t["h"] = s.op("aten.add.Tensor", [t["h"], made], (4, 8), at="h + m", line=31)

        return in_step(1, "after mm", change)

    spread = both(rewritten(1, ["a()", "-a", "-b"]), rewritten(2, ["c()", "-c", "-d"])).spread
    seen = [(side, seq) for row in spread["consumers"] for side, seq in row["seq"].items() if seq is not None]
    assert len(set(seen)) == len(seen)
    negations = [row for row in spread["consumers"] if row["operator"] == "aten.neg.default"]
    assert [None not in row["seq"].values() and row["results"] for row in negations] == ["differ"] * len(negations)
    assert negations
