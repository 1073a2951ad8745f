"""Pairs that only place or name hold together: none makes a pivot alone, and two that fit equally well are no answer."""

from __future__ import annotations

from tests.support.script import Script
from tests.unit.certify.conftest import slugs
from tests.unit.certify.test_origins import T, in_step


def test_differences_between_operators_paired_by_name_alone(both):
    def scalars(values, names):
        def change(s: Script, t: T) -> None:
            made = [s.op("aten.full.default", [], (4, 8), v, at=n, trivial=True) for v, n in zip(values, names, strict=True)]
            for at, tensor in enumerate(made):
                s.read(tensor, at=f"log{names[at]}")

        return in_step(1, "after mm", change)

    verdict = both(scalars([1, 2], ["a()", "b()"]), scalars([7, 8], ["c()", "d()"]))
    assert verdict.verdict == "identical"  # nothing sure reads them


def test_a_difference_that_only_a_guessed_pair_shows_is_inconclusive(both):
    def twist(values, names):
        def change(s: Script, t: T) -> None:
            made = [s.op("aten.full.default", [], (4, 8), v, at=n, trivial=True) for v, n in zip(values, names, strict=True)]
            for tensor in made:
                t["h"] = s.op("aten.add.Tensor", [t["h"], tensor], (4, 8), at="h + m", line=31)

        return in_step(1, "after mm", change)

    verdict = both(twist([1, 2], ["a()", "b()"]), twist([7, 8], ["c()", "d()"]))
    assert verdict.verdict == "diverged"  # the sure consumer leads back to the constants, pair by pair
    assert verdict.pivot.suspect.text == "c()"


def test_two_places_that_fit_equally_well_are_ambiguous(both):
    """Both read the same paired value, with the same operator, in the same stretch of code, and all results differ."""

    def twist(word, names):
        def change(s: Script, t: T) -> None:
            base = s.op("aten.sum.default", [t["h"]], (), at="h.sum()", line=29)
            for at, name in enumerate(names):
                made = s.op("aten.expand_copy.default", [base], (4, 8), word + at, at=name, args="size=[4,8]", trivial=True)
                s.read(made, at=f"print({name})")

        return in_step(1, "after mm", change)

    verdict = both(twist(700, ["a()", "b()"]), twist(800, ["c()", "d()"]))
    assert (verdict.verdict, slugs(verdict)) == ("inconclusive", ["ambiguous-pivot"])
    assert verdict.pivot is None
    assert "model.py" in verdict.reasons[0].text


def test_a_place_whose_result_is_used_in_another_way_does_not_fit_equally_well(both):
    """A query and a value are both parts of one projection; one is scaled, the other is not."""

    def twist(word, names, uses=("aten.div.Tensor", "aten.neg.default")):
        def change(s: Script, t: T) -> None:
            base = s.op("aten.sum.default", [t["h"]], (), at="h.sum()", line=29)
            for at, name in enumerate(names):
                made = s.op("aten.expand_copy.default", [base], (4, 8), word + at, at=name, args="size=[4,8]", trivial=True)
                s.read(s.op(uses[at], [made], (4, 8), at=f"use({name})"), at=f"print({name})")

        return in_step(1, "after mm", change)

    verdict = both(twist(700, ["a()", "b()"]), twist(800, ["c()", "d()"]))
    assert verdict.verdict == "diverged"
    assert (verdict.pivot.reference.text, verdict.pivot.suspect.text) == ("a()", "c()")
    unused = ("aten.neg.default", "aten.neg.default")
    assert slugs(both(twist(700, ["a()", "b()"], unused), twist(800, ["c()", "d()"], unused))) == ["ambiguous-pivot"]


def test_a_place_chosen_by_its_consumer_is_not_ambiguous(both):
    def twist(values, names):
        def change(s: Script, t: T) -> None:
            made = [s.op("aten.full.default", [], (8, 8), v, at=n, trivial=True) for v, n in zip(values, names, strict=True)]
            t["h"] = s.op("aten.mm.default", [t["h"], made[0]], (4, 8), at="h @ m", line=31)

        return in_step(1, "after mm", change)

    verdict = both(twist([1, 2], ["a()", "b()"]), twist([7, 8], ["c()", "d()"]))
    assert (verdict.verdict, verdict.pivot.suspect.text) == ("diverged", "c()")
