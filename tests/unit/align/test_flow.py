"""Pairing by dataflow: the same parameter read by the same operator, and when that says nothing."""

from dataclasses import replace

import pytest

from opguard_core.align.aligned import align
from opguard_core.align.loading import RankColumns
from opguard_core.align.vocabulary import Vocabulary
from tests.support.script import Script


def aligned(*phases, trivial=False):
    """Both sides make the same weight (of ones, if trivial) and multiply it with something of their own, each in its phase."""
    vocabulary = Vocabulary()
    windows = []
    for number, phase in enumerate(phases):
        script = Script()
        weight = script.op("aten.fill_.Scalar", [script.given((8, 8), 1)], (8, 8), 2, at="init(w)", phase="data")
        weight = replace(weight, trivial=trivial)
        script.op("aten.mul.Tensor", [weight, script.given((8, 8), 50 + number)], (8, 8), at=f"w * x{number}", line=9, phase=phase)
        windows.append(RankColumns(script.close().ranks[0], vocabulary).window(0))
    return align(*windows)


@pytest.mark.parametrize("trivial", [False, True])
@pytest.mark.parametrize("phase", ["backward", "optimizer"])
def test_an_evaluation_is_no_partner_of_a_backward_or_an_update(phase, trivial):
    for found in (aligned("eval", phase, trivial=trivial), aligned(phase, "eval", trivial=trivial)):
        assert found.left[1] == -1


@pytest.mark.parametrize("trivial", [False, True])
@pytest.mark.parametrize("phases", [("forward", "forward"), ("forward", "backward"), ("eval", "forward"), ("backward", "backward")])
def test_other_work_on_the_same_value_is_paired(phases, trivial):
    found = aligned(*phases, trivial=trivial)
    assert (found.left[1], found.confidence[1] >= 2) == (1, True)
