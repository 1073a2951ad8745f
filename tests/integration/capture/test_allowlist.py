"""What mode trusted passes over: operators that torch has, with a reason, and none of those that are worth looking at."""

import pytest

from opguard_core.plan.allowlist import TRUSTED

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WORTH_LOOKING_AT = (
    "attention",
    "softmax",
    "norm",
    "loss",
    "sum",
    "mean",
    "cumsum",
    "embedding",
    "index",
    "scatter",
    "gather",
    "dropout",
    "fused_adam",
    "conv",
    "sort",
    "topk",
)


def overloads(name):
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    return [getattr(packet, overload) for overload in packet.overloads()]


@pytest.mark.parametrize("name", sorted(TRUSTED))
def test_torch_has_it_and_it_draws_nothing(name):
    assert TRUSTED[name]
    assert overloads(name)
    assert not any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads(name))


@pytest.mark.parametrize("word", WORTH_LOOKING_AT)
def test_what_is_worth_looking_at_is_not_on_it(word):
    assert not [name for name in TRUSTED if word in name and name != "aten::slice_scatter"]  # that one is a copy into a slice
