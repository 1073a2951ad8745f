"""Which of the lines that a generated kernel was made from is the one to open."""

import pytest

from opguard_core.certify.generated import differing, lines_made_from
from opguard_core.trace.schema import FrameRow

SAME, OLD, NEW = "a" * 64, "b" * 64, "c" * 64


def line(number, text, source, file="train.py", function="forward"):
    return FrameRow(number, file, "user", function, number, number, 0, 0, 0, text, text, source)


def numbers(*found):
    return tuple(None if one is None else one.line for one in found)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("reference", "suspect", "expected"),
    [
        pytest.param([(13, "tanh"), (14, "add")], [(13, "tanh")], (13, 13), id="one side's cache knows less exactly"),
        pytest.param([(12, "mul"), (13, "tanh")], [(13, "tanh"), (14, "add")], (13, 13), id="other fusions"),
        pytest.param([(12, "mul")], [(14, "add")], (None, None), id="nothing shared"),
        pytest.param([(12, "mul"), (13, "tanh")], [(12, "mul"), (13, "tanh")], (None, None), id="equal"),
    ],
)
def test_one_text_on_both_sides_has_no_line_that_differs(reference, suspect, expected, swapped):
    sides = [[line(*one, SAME) for one in side] for side in (reference, suspect)]
    found = numbers(*differing(*(reversed(sides) if swapped else sides)))
    assert found == expected


def test_an_edited_line_is_the_one_that_differs():
    reference = [line(12, "mul", OLD), line(13, "tanh(h) * C", OLD)]
    suspect = [line(12, "mul", NEW), line(14, "tanh(h) * D", NEW)]
    assert numbers(*differing(reference, suspect)) == (13, 14)
    assert numbers(*differing(reference, suspect[:1])) == (13, None)


@pytest.mark.parametrize("swapped", [False, True])
def test_an_edited_line_is_paired_with_itself_though_one_side_tells_of_more_lines(swapped):
    """Its code came from a cache that only says which operators were fused."""
    reference = [line(27, "Cube.apply(x)", OLD), line(12, "x * x", OLD), line(16, "g * x * 2", OLD, function="backward")]
    suspect = [line(28, "x - z", NEW), line(27, "Cube.apply(x)", NEW), line(16, "g * x * 3", NEW, function="backward")]
    sides = (suspect, reference) if swapped else (reference, suspect)
    assert numbers(*differing(*sides)) == (16, 16)


def test_an_edited_file_beside_one_that_is_the_same():
    reference = [line(12, "mul", SAME), line(5, "norm(x)", OLD, "layers.py")]
    suspect = [line(13, "add", SAME), line(5, "norm(x, 1)", NEW, "layers.py")]
    assert numbers(*differing(reference, suspect)) == (5, 5)


def test_two_functions_of_one_file_differ_where_their_lines_do():
    reference, suspect = ([line(at, "tanh", SAME), line(at + 1, text, SAME)] for at, text in ((12, "h * 1.25"), (32, "h * 1.26")))
    assert numbers(*differing(reference, suspect)) == (13, 33)


def test_lines_are_those_below_the_generated_file():
    generated = FrameRow(0, "inductor/0123.py", "torch", "call", 9, 9, 0, 0, 0, "", "", "")
    assert lines_made_from([line(1, "main", SAME), generated, line(13, "tanh", SAME)]) == [line(13, "tanh", SAME)]
    assert lines_made_from([line(1, "main", SAME)]) == []
