"""Which events pair, by which pass, and how sure that is."""

import numpy as np
import pytest

from opguard_core.align import passes
from opguard_core.align.flow import CROWD
from opguard_core.align.pairing import HOW
from tests.support.script import Held


def told(found):
    """(reference event, suspect event, pass, confidence) of all pairs."""
    return [(int(i), int(found.left[i]), HOW[found.how[i]], int(found.confidence[i])) for i in found.pairs]


def test_equal_content_pairs_across_any_distance_and_lane(aligned):
    def write(order, thread="main"):
        def build(s):
            for at in order:
                s.op("aten.randn.default", [], (4,), 10 + at, thread=thread)

        return build

    assert told(aligned(write([0, 1, 2]), write([2, 1, 0]))) == [(0, 2, "content", 3), (1, 1, "content", 3), (2, 0, "content", 3)]
    assert told(aligned(write([0]), write([0], "Thread:work"))) == [(0, 0, "content", 3)]


def test_a_recomputation_that_stole_the_partner_gives_it_back(aligned):
    """GIVEN a forward value the suspect computes in its recomputation only, THEN that is no pair in the skeleton's way."""

    def reference(s):
        s.op("aten.sin.default", [], (4,), 1, phase="forward")
        s.op("aten.cos.default", [], (4,), 2, phase="forward")
        s.op("aten.tan.default", [], (4,), 3, phase="backward")

    def suspect(s):
        s.op("aten.cos.default", [], (4,), 2, phase="forward")
        s.op("aten.tan.default", [], (4,), 3, phase="backward")
        s.op("aten.sin.default", [], (4,), 1, phase="recompute")

    pairs = {(i, j): how for i, j, how, _ in told(aligned(reference, suspect))}
    assert pairs[(1, 0)] == pairs[(2, 1)] == "content"
    assert pairs.get((0, 2)) in ("leftover", None)


def test_classes_of_different_size_pair_within_their_phase(aligned):
    def write(*phases):
        return lambda s: [s.op("aten.sin.default", [], (4,), 1, phase=phase) for phase in phases]

    found = aligned(write("forward"), write("forward", "recompute"))
    assert told(found) == [(0, 0, "content", 3)]


def test_trivial_values_pair_inside_their_gap(aligned):
    def write(*values):
        def build(s):
            s.op("aten.randn.default", [], (4,), 90)
            for value in values:
                s.op("aten.full.default", [], (), value, at=f"scalar{value}()")
            s.op("aten.randn.default", [], (4,), 91)

        return build

    found = aligned(write(1, 2), write(1, 3, 2))
    assert ("exact" in [how for _, _, how, _ in told(found)]) and len(found.pairs) == 4


def test_equal_inputs_pair_what_gives_another_result(aligned):
    def write(result):
        def build(s):
            x = s.op("aten.randn.default", [], (4, 8), 1)
            s.op("aten.gelu.default", [x], (4, 8), result)

        return build

    found = aligned(write(5), write(6))
    assert told(found)[1] == (1, 1, "evidence", 3)
    assert found.differs.tolist() == [False, True]


def test_leftovers_pair_by_what_they_produced_even_with_another_operator(aligned):
    def write(operator, more):
        def build(s):
            x = s.op("aten.randn.default", [], (4, 8), 1)
            for at in range(more):
                s.op(operator, [x], (4, 8), Held(5), at=f"use{at}(x)")

        return build

    found = aligned(write("aten.repeat.default", 1), write("aten.expand_copy.default", 2))
    assert len(found.pairs) == 2
    assert told(found)[1][3] == 3


def test_leftovers_take_a_partner_from_a_pair_whose_results_differ(aligned):
    """Weights are shared: equal inputs alone pair the wrong micro-batch, equal results correct it."""

    def reference(s):
        w = s.op("aten.randn.default", [], (8, 8), 1)
        s.op("aten.mm.default", [s.given((4, 8), 20), w], (4, 8), 30, at="net(x0)", phase="forward")
        s.op("aten.mm.default", [s.given((4, 8), 21), w], (4, 8), 31, at="net(x1)", phase="forward")

    def suspect(s):
        w = s.op("aten.randn.default", [], (8, 8), 1)
        s.op("aten.mm.default", [s.given((4, 8), 21), w], (4, 8), 31, at="net(x1)", phase="forward")
        s.op("aten.mm.default", [s.given((4, 8), 21), w], (4, 8), 31, at="net(x1)", phase="recompute")

    found = aligned(reference, suspect)
    assert int(found.left[2]) in (1, 2)
    assert not found.differs[np.flatnonzero(found.pairs == 2)[0]]


def test_large_classes_of_equal_leftovers_pair_in_order(aligned, monkeypatch):
    monkeypatch.setattr(passes, "_CROWD", 2)

    def write(count):
        def build(s):
            for at in range(count):
                s.op("aten.sin.default", [], (4,), 1, at=f"f{at}(x)", phase="forward")

        return build

    assert [(i, j) for i, j, _, _ in told(aligned(write(3), write(4)))] == [(0, 0), (1, 1), (2, 2)]


def test_dataflow_pairs_what_follows_a_difference(aligned):
    """After a difference no content is equal any more; who reads the result of a pair still is."""

    def write(word, extra):
        def build(s):
            x = s.op("aten.randn.default", [], (4, 8), 1)
            h = s.op("aten.gelu.default", [x], (4, 8), word)
            if extra:
                s.op("aten.sin.default", [s.given((4, 8), 800)], (4, 8), 801, at="noise(z)")
            a = s.op("aten.sin.default", [h], (4, 8), word + 1, at="first(h)" if extra else "eins(h)")
            s.op("aten.sin.default", [a], (4, 8), word + 2, at="second(a)" if extra else "zwei(a)")

        return build

    found = aligned(write(10, False), write(20, True))
    assert [(i, j) for i, j, how, _ in told(found) if how == "flow"] == [(2, 3), (3, 4)]


def test_a_value_that_a_crowd_reads_tells_nothing(aligned):
    def write(word):
        def build(s):
            x = s.op("aten.randn.default", [], (4, 8), 1)
            h = s.op("aten.gelu.default", [x], (4, 8), word)
            for at in range(CROWD + 1):
                s.op("aten.sin.default", [h], (4, 8), word + 5 + at, at=f"use{word}()")

        return build

    found = aligned(write(1000), write(2000))
    assert "flow" not in [how for _, _, how, _ in told(found)]
    assert len(found.pairs) == CROWD + 3


def test_structure_pairs_constants_of_different_value(aligned):
    def write(value, at):
        def build(s):
            s.op("aten.randn.default", [], (4,), 90)
            s.op("aten.full.default", [], (4, 4), value, at=at, trivial=True)

        return build

    assert told(aligned(write(1, "mask()"), write(2, "mask()")))[1] == (1, 1, "structure", 2)
    assert told(aligned(write(1, "mask()"), write(2, "maske()")))[1][2:] == ("structure", 2)  # the only one of its kind


def test_confidence_one_is_operator_and_shape_alone(aligned):
    def write(value, names):
        def build(s):
            for at, name in enumerate(names):
                s.op("aten.full.default", [], (4, 4), value + at, at=name, trivial=True)

        return build

    found = aligned(write(1, ["a()", "b()"]), write(50, ["c()", "d()"]))
    assert [confidence for _, _, _, confidence in told(found)] == [1, 1]


def test_a_parameter_name_makes_a_pair_sure(aligned):
    def write(value, at):
        def build(s):
            for name in ("param:a", "param:b"):
                s.op("aten.full.default", [], (4, 4), value, at=at, trivial=True, name=name)

        return build

    assert [confidence for *_, confidence in told(aligned(write(1, "x()"), write(2, "y()")))] == [2, 2]


def test_large_gaps_are_cut_where_the_code_looks_the_same(aligned, monkeypatch):
    monkeypatch.setattr(passes, "ANCHORED_CELLS", 4)

    def write(word):
        def build(s):
            for at in range(8):
                s.op("aten.sin.default", [s.given((4, 8), word + at)], (4, 8), word + 50 + at, at=f"layer{at}(x)")

        return build

    found = told(aligned(write(100), write(200)))
    assert [(i, j) for i, j, _, _ in found] == [(at, at) for at in range(8)]
    assert {how for _, _, how, _ in found} == {"anchor"}


def test_what_only_reads_pairs_by_what_it_read(aligned):
    def write(order):
        def build(s):
            tensors = [s.op("aten.randn.default", [], (4,), 10 + at) for at in range(2)]
            for at in order:
                s.read(tensors[at], at=f"log{order}()")

        return build

    assert [(i, j) for i, j, how, _ in told(aligned(write([0, 1]), write([1, 0]))) if how == "content"][2:] == [(2, 3), (3, 2)]


def test_windows_of_unlike_size_align_either_way(aligned):
    def write(count):
        return lambda s: [s.op("aten.randn.default", [], (4,), 10 + at) for at in range(count)]

    assert told(aligned(write(3), write(1))) == [(0, 0, "content", 3)]
    assert told(aligned(write(1), write(3))) == [(0, 0, "content", 3)]


@pytest.mark.parametrize("empty", ["reference", "suspect", "both"])
def test_a_side_without_operators_pairs_nothing(aligned, empty):
    def nothing(s):
        s.marker("opguard.run.begin")

    def something(s):
        s.op("aten.randn.default", [], (4,), 10)

    found = aligned(nothing if empty != "suspect" else something, nothing if empty != "reference" else something)
    assert told(found) == []
    assert len(found.outputs.code) == len(found.inputs.code) == 0


def counters(step: int, text: str, *, between: bool):
    """Two counters that look alike; the second one's neighbours are known by what they hold."""

    def write(s):
        x = s.given((8, 8), 1)
        s.op("aten.add_.Tensor", [s.given((), 50, name="optim:a.step")], (), 51, into=s.given((), 50), at=text, phase="optimizer")
        s.op("aten.mul.Tensor", [x], (8, 8), 2, at="x * 2")
        s.op("aten.add_.Tensor", [s.given((), step)], (), step + 1, into=s.given((), step), at=text, phase="optimizer")
        if between:
            s.op("aten.neg.default", [s.given((8, 8), step + 70)], (8, 8), step + 80, at=text)
        s.op("aten.mul.Tensor", [x, x], (8, 8), 3, at="x * x")

    return write


def test_a_pair_is_held_by_the_pairs_on_both_sides_of_it(aligned):
    """Another place, another content and another of its kind in the window: only its neighbours say which it is."""
    found = aligned(counters(60, "step += 1", between=False), counters(61, "state.add_(1)", between=False))
    assert told(found)[2][:2] == (2, 2)
    assert told(found)[2][3] == 2
    loose = aligned(counters(60, "step += 1", between=True), counters(61, "state.add_(1)", between=True))
    assert told(loose)[2][3] == 1, "a neighbour that is not sure holds nothing"
