"""How alike two names are."""

import dataclasses

import pytest

from opguard_core.plan.document import SiteKey
from opguard_core.preflight.similar import ENOUGH, likeness

KEY = SiteKey("mul", "forward", "layers.0", "Net.forward", "x*self.scale", ("float32[4,8]", "float32[]", "float32[4,8]"))


def other(**changes):
    return dataclasses.replace(KEY, **changes)


def test_a_name_is_wholly_like_itself():
    assert likeness(KEY, KEY) == 1.0


def test_another_operator_is_never_alike():
    assert likeness(KEY, other(operator="add")) == 0.0


@pytest.mark.parametrize(
    "change",
    [
        {"text": "hidden*self.scale"},
        {"function": "scaled", "text": "value*scale"},
        {"module": "", "function": "helper"},
        {"function": "f", "text": "apply(x)", "module": "stack.layers.0"},
        {"tensors": ("float32[2,8]", "float32[]", "float32[2,8]")},
        {"phase": "recompute"},
    ],
)
def test_what_a_refactoring_changes_leaves_enough(change):
    assert ENOUGH <= likeness(KEY, other(**change)) < 1.0


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": ("int64[3]",), "text": "counts*2", "function": "log", "module": ""},
        {"tensors": ("bfloat16[4,8]", "float32[]", "bfloat16[4,8]"), "phase": "backward", "module": ""},
    ],
)
def test_another_boundary_of_the_same_operator_does_not_have_enough(change):
    assert likeness(KEY, other(**change)) < ENOUGH


def test_likeness_is_the_same_both_ways():
    change = other(text="y*1.0", module="", tensors=("float32[1,8]", "float32[]", "float32[1,8]"))
    assert likeness(KEY, change) == likeness(change, KEY)


def test_a_renamed_local_is_more_alike_than_another_expression():
    assert likeness(KEY, other(text="h*self.gain")) > likeness(KEY, other(text="h+f(self.gain,3)"))
