"""Which tensors of two calls stand for each other."""

import pytest

from opguard_core.certify.semantic.slots import How, compare
from tests.support.named import Named
from tests.support.script import Held


def slots(*told):
    """Rows of (name, content[, shape])."""
    script = Named()
    return [script._slot(name, "in", script.given(shape[0] if shape else (4, 4), content)) for name, content, *shape in told]


def pairs(left, right):
    compared = compare(slots(*left), slots(*right))
    told = [(pair.reference.slot, pair.suspect.slot, str(pair.how)) for pair in compared.pairs]
    return told, str(compared.how), [slot.slot for slot in (*compared.reference_only, *compared.suspect_only)]


@pytest.mark.parametrize(
    ("left", "right", "told", "how", "alone"),
    [
        # the same names: by name, whatever they hold
        ([("in.0", 1), ("in.1", 2)], [("in.0", 2), ("in.1", 1)],
         [("in.0", "in.0", "different"), ("in.1", "in.1", "different")], "different", []),
        # other names: by content
        ([("kw.x", 1), ("kw.mask", 2)], [("in.0", 1)], [("kw.x", "in.0", "equal")], "equal", ["kw.mask"]),
        ([("in.0", 1), ("in.1", 2)], [("in.0", 2), ("in.1", 1), ("in.2", 3)],
         [("in.0", "in.1", "equal"), ("in.1", "in.0", "equal")], "equal", ["in.2"]),
        # another shape of the same bytes
        ([("out.0", 1, (2, 8))], [("out.0", 1, (16,))], [("out.0", "out.0", "equal")], "equal", []),
        # one left on each side, of one size
        ([("kw.x", 1), ("kw.y", 2)], [("in.0", 1), ("in.1", 3)],
         [("kw.x", "in.0", "equal"), ("kw.y", "in.1", "different")], "different", []),
        # two left on each side: only their size pairs them, which is no claim
        ([("kw.x", 1), ("kw.y", 2)], [("in.0", 3), ("in.1", 4)], [("kw.x", "in.0", "unsure"), ("kw.y", "in.1", "unsure")], "unsure", []),
        # nothing alike
        ([("kw.x", 1)], [("in.0", 2, (3, 5))], [], "unknown", ["kw.x", "in.0"]),
        ([], [("in.0", 2)], [], "unknown", ["in.0"]),
    ],
)  # fmt: skip
def test_slots_pair_by_name_then_by_content(left, right, told, how, alone):
    assert pairs(left, right) == (told, how, alone)


def test_a_trivial_tensor_pairs_by_content_under_its_own_name_only():
    script = Named()
    zeros = [script._slot(name, "in", script.given((4, 4), 0, trivial=True)) for name in ("kw.mask", "in.3")]
    other = slots(("kw.x", 1))
    assert compare([other[0], zeros[0]], [zeros[1], *slots(("in.0", 1))]).pairs[0].reference.slot == "kw.x"
    assert compare([zeros[0], *other], [zeros[0], *slots(("in.0", 1))]).how is How.EQUAL


def test_a_cast_with_another_tensor_beside_it_is_still_the_same_value():
    left, right = slots(("kw.x", Held(1)), ("kw.y", 5)), slots(("in.0", 5), ("in.1", Held(2, 1)))
    assert {(pair.reference.slot, pair.suspect.slot): pair.how for pair in compare(left, right).pairs} == {
        ("kw.x", "in.1"): How.CAST,
        ("kw.y", "in.0"): How.EQUAL,
    }
