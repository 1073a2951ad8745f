"""What counts as moved, told by an edit's record."""

import copy

import pytest

from tests.variants.edits import EDITS
from tests.variants.program import Program, tag
from tests.variants.runs import Expected, Shown
from tests.variants.truth import Edited, mapped_case, moved

TEXT = "import torch\n\n\ndef f(x):\n    h = x @ x\n    return h.sum()\n\n\ny = f(torch.ones(2, 2))\n"
INFO = {"rank": 0, "step": 1, "phase": "forward", "origin": "operator"}


def place(line, text, file="train.py"):
    return {"file": file, "line": line, "end_line": line, "text": text}


def answer(suspect, reference=None, **more):
    return {"verdict": "diverged", "reasons": [], "pivot": {**INFO, "suspect": suspect, "reference": reference or place(1, "a"), **more}}


def edited(kind, seed=0, text=TEXT):
    import numpy as np

    program = Program({"train.py": tag(text, iter(range(1, 99)))}, "train.py")
    before = program.written()[1]
    EDITS[kind](program, np.random.default_rng(seed))
    return Edited(before, program.written()[1], program)


BEFORE = answer(place(5, "x @ x"))


def where(side, text):
    """The place now of the statement that holds a text."""
    spot = next(spot for spot in side.after if text in spot.text)
    return spot.file, spot.first


def test_an_expression_that_moved_with_its_function_has_not_moved():
    side = edited("definitions-moved")
    file, line = where(side, "x @ x")
    assert file != "train.py"
    assert moved(BEFORE, answer(place(line, "x @ x", file)), {"suspect": side}) == []
    assert moved(BEFORE, answer(place(5, "x @ x")), {"suspect": side}) != []


def test_another_line_expression_step_phase_or_origin_has_moved():
    side = edited("comments")
    file, line = where(side, "x @ x")
    assert moved(BEFORE, answer(place(line, "x @ x", file)), {"suspect": side}) == []
    assert "statement" in moved(BEFORE, answer(place(where(side, "h.sum()")[1], "h.sum()")), {"suspect": side})[0]
    assert "expression" in moved(BEFORE, answer(place(line, "x")), {"suspect": side})[0]
    for key, other in (("step", 2), ("phase", "backward"), ("origin", "dtype"), ("rank", 1)):
        assert moved(BEFORE, answer(place(line, "x @ x", file), **{key: other}), {"suspect": side}) != []
    assert moved(BEFORE, answer(place(line, "x @ x"), place(2, "b")), {"suspect": side}) != []
    assert moved(BEFORE, answer(None), {"suspect": side}) != []


def test_an_inserted_statement_is_never_the_pivot():
    side = edited("observations", 0)
    lines = side.program.written()[0]["train.py"].split("\n")
    inserted = next(number for number, line in enumerate(lines, 1) if line.strip().startswith("if isinstance"))
    assert moved(BEFORE, answer(place(inserted, "isinstance(h, torch.Tensor)")), {"suspect": side}) != []


@pytest.mark.parametrize("verdict", ["identical", "inconclusive"])
def test_another_verdict_has_moved(verdict):
    other = {"verdict": verdict, "reasons": [{"slug": "low-coverage"}], "pivot": None}
    assert moved(BEFORE, other, {}) == [f"verdict diverged -> {verdict} ['low-coverage']"]


def test_a_longer_run_may_be_of_unequal_length_and_nothing_else():
    side = edited("comments")
    same = {"verdict": "identical", "reasons": [], "pivot": None}
    unequal = {"verdict": "inconclusive", "reasons": [{"slug": "unequal-length"}], "pivot": None}
    assert moved(same, unequal, {"suspect": side}) != []
    side.program.steps_added = True
    assert moved(same, unequal, {"suspect": side}) == []
    assert moved(same, {**unequal, "reasons": [{"slug": "unequal-length"}, {"slug": "gap"}]}, {"suspect": side}) != []
    assert moved(BEFORE, unequal, {"suspect": side}) != []


def test_the_truth_of_a_case_moves_with_its_statement():
    case = {"expected": {"step": 1, "file": "train.py", "line_text": "h = x @ x", "line": 5}, "also_acceptable": [], "slug": "s"}
    kept = copy.deepcopy(case)
    side = edited("definitions-moved")
    mapped = mapped_case(case, {"suspect": side})
    assert [(other["file"], other["line"]) for other in mapped["also_acceptable"]] == [where(side, "x @ x")]
    assert mapped["expected"]["file"] == ""
    assert case == kept


SHORT = Shown((0,), (("loss 0.5", "took 3.1 s"),), (("1", "2"),))


def test_a_run_is_neutral_if_it_ends_prints_and_updates_alike():
    expected = Expected.of([SHORT])
    assert expected.matches(SHORT)
    for other in (
        Shown((1,), SHORT.lines, SHORT.updates),
        Shown((0,), (("loss 0.6", "took 3.1 s"),), SHORT.updates),
        Shown((0,), (("loss 0.5",),), SHORT.updates),
        Shown((0,), SHORT.lines, (("1", "3"),)),
        Shown((0,), SHORT.lines, (("1", "2", "3"),)),
        Shown((0,), (("loss 0.5", "took 3.1 s", "more"),), SHORT.updates),
    ):
        assert not expected.matches(other)


def test_what_two_runs_of_one_program_disagree_in_is_not_asked_of_a_third():
    expected = Expected.of([SHORT, Shown((0,), (("loss 0.5", "took 3.2 s"),), SHORT.updates)])
    assert expected.matches(Shown((0,), (("loss 0.5", "took 9.9 s"),), SHORT.updates))
    assert not expected.matches(Shown((0,), (("loss 0.6", "took 9.9 s"),), SHORT.updates))
    with pytest.raises(RuntimeError, match="differently"):
        Expected.of([SHORT, Shown((1,), SHORT.lines, SHORT.updates)])


def test_a_longer_run_does_all_the_shorter_did_and_then_more():
    expected = Expected.of([SHORT])
    more = (("loss 0.5", "took 3.1 s", "loss 0.4"),)
    assert expected.matches(Shown((0,), more, (("1", "2", "3"),)), longer=True)
    assert not expected.matches(SHORT, longer=True)
    assert not expected.matches(Shown((0,), (("loss 0.7", "took 3.1 s", "loss 0.4"),), (("1", "2", "3"),)), longer=True)
    assert not expected.matches(Shown((0,), more, (("1", "9", "3"),)), longer=True)
    assert not expected.matches(Shown((1,), more, (("1", "2", "3"),)), longer=True)
