"""Operators over lists are taken apart, so that a foreach optimizer meets a loop."""

import numpy as np

from opguard_core.align import foreach
from tests.support.script import Held


def list_op(s, operator, count, *, shared=True, outs=False, into=True):
    tensors = [s.given((4,), 10 + at) for at in range(count)]
    grads = [s.given((4,), 20 + at) for at in range(count)]
    slots = [s._slot(f"in.0.{at}", "in", tensor) for at, tensor in enumerate(tensors)]
    slots += [s._slot(f"in.1.{at}", "in", tensor) for at, tensor in enumerate(grads)]
    if shared:
        slots.append(s._slot("in.2", "in", s.given((), 30)))
    if into:
        slots += [s._slot(f"mut.0.{at}", "mut", tensor.holding(40 + at)) for at, tensor in enumerate(tensors)]
    if outs:
        slots += [s._slot(f"out.0.{at}", "out", s.given((4,), 50 + at)) for at in range(count)]
    s.event(operator, slots)


def slots_of(window, event):
    return [window.text(int(window.slot[row])) for row in range(window.first[event], window.first[event + 1])]


def test_every_element_gets_an_event_of_its_own(window):
    def write(s):
        s.op("aten.randn.default", [], (4,), 1)
        list_op(s, "aten._foreach_add_.List", 3)
        s.op("aten.neg.default", [s.given((4,), 9)], (4,))

    found = window(write)
    assert len(found) == 5
    assert found.seq.tolist() == [0, 1, 1, 1, 2]
    assert slots_of(found, 2) == ["in.0.1", "in.1.1", "in.2", "mut.0.1"]
    assert found.text(int(found.op[2])) == "add"
    assert found.operator_text(2) == "aten._foreach_add_.List"
    assert slots_of(found, 4) == ["in.0", "out.0"]


def test_returned_lists_are_taken_apart_as_well(window):
    found = window(lambda s: list_op(s, "aten._foreach_norm.Scalar", 2, outs=True, into=False, shared=False))
    assert [slots_of(found, event) for event in range(2)] == [["in.0.0", "in.1.0", "out.0.0"], ["in.0.1", "in.1.1", "out.0.1"]]


def test_a_shared_result_belongs_to_the_last_element(window):
    def write(s):
        slots = [s._slot(f"in.0.{at}", "in", s.given((4,), at)) for at in range(2)]
        s.event("aten._amp_foreach_non_finite_check_and_unscale_.default", [*slots, s._slot("mut.1", "mut", s.given((), 7))])

    found = window(write)
    assert [slots_of(found, event) for event in range(2)] == [["in.0.0"], ["in.0.1", "mut.1"]]


def test_operators_that_join_a_list_stay_whole(window):
    def write(s):
        s.event("aten.cat.default", [s._slot(f"in.0.{at}", "in", s.given((4,), at)) for at in range(3)])

    assert len(window(write)) == 1


def test_links_to_forward_events_follow(window):
    def write(s):
        list_op(s, "aten._foreach_add_.List", 2)
        s.op("aten.sin.default", [s.given((4,), 1)], (4,))
        s.op("aten.cos.default", [s.given((4,), 1)], (4,), forward=1, phase="backward")

    found = window(write)
    assert found.forward.tolist() == [-1, -1, -1, 2]


def test_element_numbers_that_cannot_be_meant_are_not_believed(window):
    def lying(s):
        s.event("aten._foreach_neg.default", [s._slot("in.0.999999999", "in", s.given((4,), 1))])
        s.event("aten._foreach_neg.default", [s._slot(f"in.{at}", "in", s.given((4,), at)) for at in range(foreach.MAX_SHARED + 1)])
        s.event("aten._foreach_neg.default", [s._slot("in.0.x", "in", s.given((4,), 1))])
        s.event("aten._foreach_neg.default", [])

    assert len(window(lying)) == 4


def test_a_loop_and_a_list_pair_element_by_element(aligned):
    def loop(s):
        for at in (2, 0, 1):  # another order, too
            x, g = s.given((4,), 10 + at), s.given((4,), 20 + at)
            s.op("aten.add_.Tensor", [x, g], (4,), 40 + at, into=x)

    found = aligned(loop, lambda s: list_op(s, "aten._foreach_add_.List", 3, shared=False))
    assert found.left.tolist() == [2, 0, 1]
    assert found.outputs.same.all() and found.inputs.same.all()


def test_a_wrong_element_is_found_among_right_ones(aligned):
    def loop(s):
        for at in range(3):
            x, g = s.given((4,), 10 + at), s.given((4,), 20 + at)
            s.op("aten.add_.Tensor", [x, g], (4,), Held(40 + at if at != 1 else 99), into=x)

    found = aligned(loop, lambda s: list_op(s, "aten._foreach_add_.List", 3, shared=False))
    assert found.left.tolist() == [0, 1, 2]
    assert np.flatnonzero(found.differs).tolist() == [1]
    assert found.confidence.tolist() == [3, 3, 3]
