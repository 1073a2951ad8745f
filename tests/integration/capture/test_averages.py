# ruff: noqa: E402  (torch may be missing)
"""Averaged copies of a model (EMA) are state, although nobody ever calls them."""

import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.optim.swa_utils import AveragedModel

from opguard_core.probe.tensor import fingerprint
from tests.support.capturing import capturing


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([copy.deepcopy(torch.nn.Linear(2, 2)) for _ in range(2)])

    def forward(self, x):
        return self.layers[1](self.layers[0](x))


def _deepcopied(model):
    return copy.deepcopy(model)


def _loaded(model):
    average = Model()
    average.load_state_dict(model.state_dict())
    return average


def _averaged(model):
    return AveragedModel(model).module


@pytest.mark.parametrize("make", [_deepcopied, _loaded, _averaged])
def test_an_average_nobody_calls_is_in_the_state(make):
    with capturing() as seen:
        model = Model()
        average = make(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            with torch.no_grad():
                for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.5)
    names = {name for name in seen.slots(seen.states[-1]) if name.startswith("param:")}
    own = {f"param:layers.{layer}.{leaf}" for layer in (0, 1) for leaf in ("weight", "bias")}
    assert names == own | {name.replace("param:", "param:Model.") for name in own}
    slot = seen.slots(seen.states[-1])["param:Model.layers.1.weight"]
    assert slot.mix64 == fingerprint(average.layers[1].weight).mix64


def test_a_copy_that_is_gone_is_forgotten():
    with capturing() as seen:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        gone = weakref.ref(copy.deepcopy(model))
        gc.collect()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert gone() is None
    assert not [name for name in seen.slots(seen.states[-1]) if "Model" in name]
