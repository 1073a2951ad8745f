# ruff: noqa: E402  (torch may be missing)
"""Replays of Inductor's CUDA graphs, tried on classes that have torch's names: each replay is one call outside the dispatcher."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.engines.coverage import Coverage
from opguard_core.engines.guard import Guard
from opguard_core.engines.inductor.replays import OPERATOR, TREES, Replays
from tests.unit.inductor.outside import Outside


class Node:
    """As a recorded graph: empties its inputs, may write into some of them."""

    wrapped_function = SimpleNamespace(mutated_input_idxs=[1])
    fails = False

    def run(self, new_inputs):
        if self.fails:
            raise RuntimeError("graph")
        new_inputs.clear()
        return [torch.ones(1), None, 3]


@pytest.fixture
def trees(monkeypatch):
    module = ModuleType(TREES)
    module.CUDAGraphNode = type("CUDAGraphNode", (Node,), {"run": Node.run})
    module.CUDAWarmupNode = type("CUDAWarmupNode", (Node,), {"run": Node.run})
    monkeypatch.setitem(sys.modules, TREES, module)
    return module


def test_a_replay_reads_its_inputs_and_gives_its_outputs(trees):
    outside = Outside()
    before = trees.CUDAGraphNode.run
    replays = Replays(outside, Guard(Coverage(lambda: 0)))
    replays.start()

    def step(node):
        return node.run([torch.zeros(1), torch.zeros(1), 7])

    assert len(step(trees.CUDAGraphNode())) == 3
    assert outside.told == [(OPERATOR, ["in.0", "in.1"], "", "step"), (["out.0"], ["mut.1"])]
    assert (replays.num_replays, outside.known) == (1, 0)
    trees.CUDAGraphNode.fails = True
    with pytest.raises(RuntimeError, match="graph"):
        step(trees.CUDAGraphNode())
    assert outside.told[-1] == "graph, muted False" and outside.known == 0
    step(trees.CUDAWarmupNode())  # runs as it is: its kernels are seen
    assert replays.num_replays == 2
    replays.stop()
    assert trees.CUDAGraphNode.run is before
