# ruff: noqa: E402  (torch may be missing)
"""Calls of an extension in rewritten modules are events, at the expression that calls; compiled functions are not broken by the flag."""

import importlib
import os
import sys

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.instrument import runtime
from tests.support.capturing import capturing

PROGRAM = """
import torch
from tests.support.outside.building import extension

ext = extension()


class Scaled(torch.nn.Module):
    def forward(self, x):
        y = x * 2
        ext.fused(x, y, 0.5); z = [ext.scale_(v, 3.0) for v in (y, y)]
        return sum(z) + ext.sum(
            y)


def step(x):
    table = {}
    table["out"] = Scaled()(x)
    total = 0
    total += table["out"].sum()
    return total
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    (tmp_path / "og_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield "og_program"
    sys.modules.pop("og_program", None)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="columns need CPython 3.11")
def test_a_call_is_an_event_at_its_expression_and_the_program_computes_what_it_did(program):
    plain = importlib.import_module(program).step(torch.ones(2, 3))
    del sys.modules[program]
    with capturing(callsites=("auto",)) as seen:
        result = importlib.import_module(program).step(torch.ones(2, 3))
    assert torch.equal(result, plain)
    called = [event for event in seen.events if event.operator.startswith("extension.")]
    assert [(event.operator, seen.text(event), seen.frame(event).function) for event in called] == [
        ("extension.outside_extension.fused", "ext.fused(x, y, 0.5)", "Scaled.forward"),
        ("extension.outside_extension.scale_", "ext.scale_(v, 3.0)", called[1] and seen.frame(called[1]).function),
        ("extension.outside_extension.scale_", "ext.scale_(v, 3.0)", seen.frame(called[2]).function),
        ("extension.outside_extension.sum", "ext.sum(\n            y)", "Scaled.forward"),
    ]
    assert set(seen.slots(called[0], "mut")) == {"mut.1"}
    assert seen.session.engines["callsites"]["modules"][program]["reason"] == "rewritten"
    observed = seen.session.engines["callsites"]["observed"]
    assert [(row["operator"].rpartition(".")[2], row["line"], row["kind"]) for row in observed] == [
        ("fused", 11, "call"),
        ("scale_", 11, "call"),
        ("sum", 12, "call"),
    ]
    assert observed[0]["tag"] == "Scaled.forward: .fused(_,_,float) #0"
    assert seen.gaps == []
    assert runtime.observer is None


def test_without_callsites_nothing_is_rewritten(program):
    with capturing() as seen:
        module = importlib.import_module(program)
    assert runtime.OBSERVING not in module.step.__code__.co_names
    assert "callsites" not in seen.session.engines


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_pattern_names_the_callees_and_a_forked_child_is_not_observed(program):
    with capturing(callsites=("outside_extension.scale*",)) as seen:
        importlib.import_module(program).step(torch.ones(2, 3))
        child = os.fork()
        if child == 0:  # observed by nobody
            os._exit(runtime.observer is not None)
        assert os.waitpid(child, 0)[1] == 0
    assert {event.operator for event in seen.events if event.operator.startswith("extension.")} == {"extension.outside_extension.scale_"}


COMPILED = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = self.activate(layer(x)).view(-1, 4)
        y = x.new_zeros(x.shape)
        y[0] = x[0]
        y += x
        return y.sum(dim=-1)

    def activate(self, x):
        return x.clamp(min=0)
"""


@pytest.mark.full
def test_rewritten_code_compiles_to_one_graph_observed_or_not(program, tmp_path):
    (tmp_path / f"{program}.py").write_text(COMPILED)
    with capturing(callsites=("all",)):
        model = importlib.import_module(program).Model()
        x = torch.randn(3, 4)
        expected = model(x)
        watching, compiling = runtime.observer, runtime.compiling
    for observer in (None, watching):
        runtime.observe(observer)
        runtime.compiling = compiling
        try:
            torch._dynamo.reset()
            assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), expected)
        finally:
            runtime.observe(None)
    assert runtime.OBSERVING in type(model).forward.__code__.co_names
