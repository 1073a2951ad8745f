# ruff: noqa: E402  (torch may be missing)
"""Sides that step optimizers in another order, or update by hand behind one: equal, in doubt, or the true place; never a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

from tests.support import inside

PROGRAM = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 6))
{optimizers}
for step in range(4):
    x = torch.randn(5, 6)
    loss = torch.nn.functional.mse_loss(net(x), {target})
    net.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
"""
BODY, HEAD = "torch.optim.SGD(net[0].parameters(), lr=0.1)", "torch.optim.Adam(net[2].parameters(), lr=0.01)"
BY_HAND = """
class Plain:
    def __init__(self, parameters):
        self.parameters = list(parameters)
    @torch.no_grad()
    def step(self):
        for p in self.parameters:
            update = p.grad.to(torch.float64) * {factor}
            p.add_(update.to(torch.float32), alpha=-0.1)
"""
AS_BY_HAND = """
class Widened(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            update = p.grad.to(torch.float64) * 1.0
            p.add_(update.to(torch.float32), alpha=-0.1)
"""


def program(*optimizers, target="x.sin()", before=""):
    return PROGRAM.format(optimizers=f"{before}\noptimizers = [{', '.join(optimizers)}]", target=target)


def test_optimizers_of_a_models_parts_may_step_in_another_order(compared):
    found = compared(program(BODY, HEAD), program(HEAD, BODY))
    assert found["verdict"] == "identical" and found["compared"]["paired_share"] == {"reference": 1.0, "suspect": 1.0}


def test_a_fault_is_found_although_the_order_is_another(compared):
    found = compared(program(BODY, HEAD), program(HEAD, BODY.replace("lr=0.1", "lr=0.1 * (1 + 1e-3)")))
    assert found["verdict"] == "diverged"
    assert (found["pivot"]["step"], found["pivot"]["origin"], found["pivot"]["suspect"]["text"]) == (0, "argument", "optimizer.step()")


def test_a_fault_before_the_updates_is_found_although_the_order_is_another(compared):
    found = compared(program(BODY, HEAD), program(HEAD, BODY, target="(x + (step == 2)).sin()"))
    assert (found["verdict"], found["pivot"]["step"]) == ("diverged", 2)
    assert found["pivot"]["suspect"]["text"] in ("x + (step == 2)", "(x + (step == 2)).sin()")


def test_what_one_side_forgets_to_step_is_a_difference(compared):
    found = compared(program(BODY, HEAD), program(BODY, before=f"forgotten = {HEAD}"))
    assert (found["verdict"], found["pivot"]["step"]) == ("diverged", 0)
    assert found["pivot"]["reference"]["text"] == "optimizer.step()"


def by_hand(factor):
    """The reference updates all within optimizers; the suspect updates the body by hand behind its one optimizer."""
    reference = program("Widened(net[0].parameters())", HEAD, before=AS_BY_HAND)
    return reference, program(HEAD, "Plain(net[0].parameters())", before=BY_HAND.format(factor=factor))


def test_an_update_by_hand_behind_the_optimizer_is_in_doubt(compared):
    found = compared(*by_hand("1.0"))
    assert (found["verdict"], found["pivot"]) == ("inconclusive", None)
    assert "optimizers-differ" in [item["slug"] for item in found["reasons"]]


def test_a_fault_in_it_is_told_where_its_result_is_read_with_both_updates(compared):
    found = compared(*by_hand("1.5"))
    assert (found["verdict"], found["pivot"]["step"], found["pivot"]["suspect"]["text"]) == ("diverged", 1, "net(x)")
    made = [near for near in found["pivot"]["near"] if near["what"] == "producer"]
    assert [(near["reference"] or near["suspect"])["function"] for near in made] == ["Widened.step", "Plain.step"]


def test_an_update_paired_with_one_of_another_step_is_in_doubt(compared):
    """The suspect's matrices are updated by hand behind its AdamW: each stands where the reference has another step's update."""
    folder = Path(inside.__file__).parent / "by_hand"
    found = compared(folder / "reference", folder / "suspect")
    assert (found["verdict"], found["pivot"]) == ("inconclusive", None)
    assert "optimizers-differ" in [item["slug"] for item in found["reasons"]]
