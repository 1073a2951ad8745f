"""Neighbours change places only where nothing could tell."""

import libcst as cst
import pytest

from tests.variants.edits.purity import Purity

LAYERS = """
class Block:
    def __init__(self):
        self.q = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.drop = nn.Dropout(0.1)
        self.other = nn.Linear(4, 4) if True else None
"""


def independent(first, second):
    module = cst.parse_module(f"{first}\n{second}\n")
    return Purity([cst.parse_module(LAYERS)]).independent(module.body[0], module.body[1])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a = x.view(2, 3)", "b = y + 1"),
        ("a, b = x.shape", "c = torch.arange(4)"),
        ("q = self.q(x).transpose(1, 2)", "n = self.norm(x)"),
        ("a = x.sum()", "print(y)"),
        ("print(y)", "a = x.sum()"),
        ("def f(x):\n    return x", "def g(x, n=2):\n    return f(x)"),
        ("opt.zero_grad()", "loss = F.cross_entropy(model(x), y)"),
        ("loss = F.cross_entropy(model(x), y)", "opt.zero_grad()"),
    ],
)
def test_independent_neighbours_are_found(first, second):
    assert independent(first, second)
    assert independent(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a = x.view(2, 3)", "b = a + 1"),
        ("a = b + 1", "b = x + 1"),
        ("a = x + 1", "a = y + 1"),
        ("a = x.mul_(2)", "b = x + 1"),
        ("a = torch.rand(3)", "b = torch.rand(3)"),
        ("a = self.drop(x)", "b = self.q(x)"),
        ("a = self.other(x)", "b = self.q(x)"),
        ("a = f(x)", "b = y + 1"),
        ("a = next(it)", "b = y + 1"),
        ("a = torch.empty(3).normal_()", "b = y + 1"),
        ("a = (n := 3)", "b = y + 1"),
        ("self.a = x + 1", "b = y + 1"),
        ("a[0] = x + 1", "b = a + 1"),
        ("a = x + 1", "print(a)"),
        ("a = x + 1", "log(y)"),
        ("opt.zero_grad()", "g = model.weight.grad.norm()"),
        ("opt.zero_grad()", "loss.backward()"),
        ("opt.zero_grad()", "opt = make()"),
        ("def f(x):\n    return x", "def f(y):\n    return y"),
        ("def f(x=make()):\n    return x", "def g(y):\n    return y"),
        ("@register\ndef f(x):\n    return x", "def g(y):\n    return y"),
        ("a = x + 1", "return a"),
        ("for a in x:\n    pass", "b = y + 1"),
    ],
)
def test_neighbours_that_may_depend_on_each_other_stay(first, second):
    assert not independent(first, second)
    assert not independent(second, first)
