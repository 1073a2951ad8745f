"""One side prints another quantity than the other; what both compute is the same, or is not."""

import pytest

from tests.support.script import Script


def prints(which, *, copies=0, change=None):
    """Each step prints that tensor, or a number of copies of copies of it, at the end."""

    def twist(s: Script, place: str, t) -> None:
        if change is not None and place == "after mm":
            change(s, t)
        if place == "after gelu":
            t["half"] = s.op("aten.div.Tensor", [t["a"]], (), 4000 + s.window, args="other=2", at="loss / 2", line=20)
            t["norm"] = s.op("aten.linalg_vector_norm.default", [t["x"]], (), 5000 + s.window, at="x.norm()", line=21)
        if place == "after update":
            told = t[which]
            for _ in range(copies):
                told = s.op("aten.clone.default", [told], (), told.held, at="loss.clone()", line=22)
            s.read(told, at="print(told)", line=23)

    return twist


def own(s: Script, t):
    """A quantity that only this side works out."""
    t["mean"] = s.op("aten.sub.Tensor", [t["x"]], (), 6000 + s.window, at="mean over ranks", line=30)


@pytest.mark.parametrize("copies", [0, 1, 3])
def test_another_quantity_in_the_log_is_no_difference_and_is_named(both, copies):
    verdict = both(prints("half", copies=copies), prints("norm"))
    assert (verdict.verdict, verdict.reasons) == ("identical", [])
    assert [(found.reference.text, found.suspect.text, found.origin) for found in verdict.isolated] == [
        ("print(told)", "print(told)", "structure")
    ]


def test_a_quantity_that_one_side_alone_computes_for_its_log_is_that_sides_affair(both):
    verdict = both(prints("half"), prints("mean", change=own))
    assert (verdict.verdict, verdict.reasons) == ("identical", [])


def test_two_quantities_of_which_neither_side_has_the_others_stay_doubtful(both):
    def other(s: Script, t):
        t["mean"] = s.op("aten.mul.Tensor", [t["x"]], (), 7000 + s.window, at="a mean of means", line=31)

    verdict = both(prints("mean", change=own), prints("mean", change=other))
    assert (verdict.verdict, [reason.slug for reason in verdict.reasons]) == ("inconclusive", ["low-confidence"])


def test_a_quantity_that_differs_by_itself_is_still_found(both):
    def changed(s: Script, t):
        t["h"] = s.op("aten.add_.Tensor", [t["h"]], t["h"].shape, into=t["h"], args="other=1", at="h += 1", line=32)

    verdict = both(prints("half"), prints("norm", change=changed))
    assert (verdict.verdict, verdict.pivot.suspect.text) == ("diverged", "h += 1")
