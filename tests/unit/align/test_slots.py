"""How slots compare, and which slots of two events stand for each other."""

import numpy as np
import pytest

from opguard_core.align import slots
from opguard_core.align.slots import NAMES
from tests.support.script import Held, Tensor


def codes(aligned, *, outputs=True):
    return [NAMES[code] for code in (aligned.outputs if outputs else aligned.inputs).code.tolist()]


def made(content, shape=(4, 8), dtype="float32", **facts):
    return lambda s: s.op("aten.randn.default", [], shape, content, dtype=dtype, **facts)


@pytest.mark.parametrize(
    ("left", "right", "code"),
    [
        (made(1), made(1), "equal"),
        (made(Held(1, 5)), made(Held(2, 5), dtype="bfloat16"), "cast"),
        (made(Held(1, 1, 5)), made(Held(2, 2, 5), (8, 4)), "layout"),
        (made(Held(1, 1, 5)), made(Held(2, 2, 5)), "permuted"),
        (made(1), made(2), "different"),
        (made(1, status="uninitialised"), made(2), "unknown"),
        (made(1, shape=(0, 8)), made(2, shape=(0, 9)), "equal"),
        (made(1, shape=(4, 8)), made(1, shape=(32,)), "equal"),
        (made(1, shape=(2,)), made(2, shape=(2,)), "different"),
    ],
)
def test_two_contents_compare(aligned, left, right, code):
    assert codes(aligned(left, right)) == [code]


def test_an_in_place_result_stands_for_a_returned_one(aligned):
    def returned(s):
        x, y = s.given((4,), 1), s.given((4,), 2)
        s.op("aten.add.Tensor", [x, y], (4,))

    def in_place(s):
        x, y = s.given((4,), 1), s.given((4,), 2)
        s.op("aten.add_.Tensor", [x, y], (4,), into=x)

    found = aligned(returned, in_place)
    assert codes(found) == ["equal"]
    assert codes(found, outputs=False) == ["equal", "equal"]


def test_slots_match_by_name_before_position(aligned):
    def event(*names):
        def write(s):
            tensors = {"in.0": s.given((4,), 1), "in.2": s.given((4,), 3), "kw.mask": s.given((4,), 9)}
            rows = [s._slot(name, "in", tensors[name]) for name in names]
            s.event("aten.where.self", [*rows, s._slot("out.0", "out", s.given((4,), 50))])

        return write

    found = aligned(event("in.0", "in.2", "kw.mask"), event("in.0", "kw.mask"))
    assert codes(found, outputs=False) == ["equal", "equal"]


def test_the_operands_of_a_commutative_operator_may_be_swapped(aligned):
    def write(swapped, operator="aten.mul.Tensor"):
        def build(s):
            operands = [s.given((4,), 1), s.given((4,), 2)]
            s.op(operator, operands[::-1] if swapped else operands, (4,), 7)

        return build

    assert codes(aligned(write(False), write(True)), outputs=False) == ["equal", "equal"]
    assert codes(aligned(write(False, "aten.sub.Tensor"), write(True, "aten.sub.Tensor")), outputs=False) == ["different", "different"]


def test_a_three_operand_or_a_half_equal_call_is_not_uncrossed(aligned):
    def write(*words):
        def build(s):
            s.op("aten.add.Tensor", [s.given((4,), word) for word in words], (4,), 7)

        return build

    assert codes(aligned(write(1, 2), write(1, 3)), outputs=False) == ["equal", "different"]
    assert codes(aligned(write(1, 2, 3), write(2, 1, 3)), outputs=False) == ["different", "different", "equal"]


def test_matching_no_pairs_gives_nothing(aligned):
    found = aligned(made(1), made(1))
    none = np.zeros(0, np.int64)
    matched = slots.match(found.reference.window, found.suspect.window, none, none, outputs=True)
    assert len(matched.code) == len(matched.pair) == 0


def test_a_layout_is_carried_through_operators_that_hide_it(aligned):
    """[S,B] against [B,S] with S == B: only the data says that it is another layout and not a permutation."""

    def write(word, shape):
        def build(s):
            x = s.op("aten.randn.default", [], shape, Held(word, None, 100))
            flat = s.op("aten.gelu.default", [x], (32,), Held(word + 1, None, 101))
            deep = s.op("aten.relu.default", [flat], (32,), Held(word + 2, None, 102))
            s.op("aten.neg.default", [deep], (32,), Held(word + 3, None, 103))

        return build

    found = aligned(write(10, (4, 8)), write(20, (8, 4)))
    assert codes(found) == ["layout"] * 4
    assert codes(found, outputs=False) == ["layout"] * 3


def test_a_permutation_that_no_layout_explains_stays_one(aligned):
    def write(word):
        def build(s):
            x = s.op("aten.randn.default", [], (4, 8), 5)
            flat = s.op("aten.gelu.default", [x], (32,), Held(word, None, 101))
            s.op("aten.relu.default", [flat], (32,), Held(word + 1, None, 102))

        return build

    found = aligned(write(10), write(20))
    assert codes(found) == ["equal", "permuted", "permuted"]


def test_a_layout_of_one_producer_does_not_excuse_another(aligned):
    def write(word, shape, swapped):
        def build(s):
            x = s.op("aten.randn.default", [], shape, Held(word, None, 100), at="a()")
            y = s.op("aten.rand.default", [], (32,), Held(word + 1, None, 101), at="b()")
            s.op("aten.relu.default", [y if swapped else x], (32,), Held(word + 2, None, 102), at="c()")

        return build

    found = aligned(write(10, (4, 8), True), write(20, (8, 4), True))
    assert codes(found) == ["layout", "permuted", "permuted"]


def test_tensor_is_only_a_name_for_slots():
    assert Tensor(0, (2, 3), Held(1)).nbytes == 24
