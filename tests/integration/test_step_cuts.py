"""Programs that make the same updates, cut into steps at other places: in doubt, never a line whose values are equal."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

BEGIN = """
import torch
torch.manual_seed(0)
a, b = torch.ones(4, requires_grad=True), torch.ones({small}, requires_grad=True)
{made}
mean = torch.zeros({small})
for step in range(4):
    oa.zero_grad(); ob.zero_grad()
{body}
"""
SGD = "oa, ob = torch.optim.SGD([a], lr=0.1), torch.optim.SGD([b], lr=0.1)"
OTHER_WAY = "ob, oa = torch.optim.SGD([b], lr=0.1), torch.optim.SGD([a], lr=0.1)"
FIRST, SECOND = (f"    {name}.square().sum().backward(); o{name}.step()\n" for name in "ab")
BOTH = "    (a.square().sum() + b.square().sum()).backward()\n"


def program(body, *, small=2, made=SGD):
    return BEGIN.format(body=body, small=small, made=made)


def doubted(found):
    assert found["verdict"] == "inconclusive", found["pivot"]
    return found["reasons"][0]["slug"]


def test_two_trainings_in_one_loop_in_another_order(compared):
    assert doubted(compared(program(FIRST + SECOND), program(SECOND + FIRST))) == "steps-differ"


def test_equal_ones_of_which_the_other_was_made_first(compared):
    body = FIRST + SECOND
    assert doubted(compared(program(body, small=4), program(body, small=4, made=OTHER_WAY))) == "steps-differ"


def test_a_batch_fetched_between_two_steps(compared):
    feed = SGD + "\nfeed = iter(torch.utils.data.DataLoader(torch.arange(8.0)))"
    between, behind = (BOTH + f"    {line}\n" for line in ("oa.step(); next(feed); ob.step()", "oa.step(); ob.step(); next(feed)"))
    assert doubted(compared(program(between, made=feed), program(behind, made=feed))) == "steps-differ"


@pytest.mark.parametrize("rate", ["0.5", "(0.5 if step < 2 else 0.25)"])
def test_an_average_between_two_steps_or_behind_them_whatever_differs_later(compared, rate):
    between = BOTH + "    oa.step(); mean.lerp_(b.detach(), 0.5); ob.step()\n"
    behind = BOTH + f"    oa.step(); ob.step(); mean.lerp_(b.detach() * 0 + 1 if step < 0 else b0, {rate})\n"
    behind = behind.replace("    oa.step()", "    b0 = b.detach().clone(); oa.step()", 1)
    between = between.replace("    oa.step()", "    b0 = b.detach().clone(); oa.step()", 1).replace("b.detach(), 0.5", "b0, 0.5")
    assert doubted(compared(program(between), program(behind))) == "optimizers-differ"


@pytest.mark.parametrize(
    ("wrong", "step"),
    [
        ("    if step != 2: ob.step()\n", 2),  # one update is missing for good
        ("    ob.step()\n    if step == 1: ob.step()\n", 2),  # one is made twice: the second time behind the end of the step
    ],
)
def test_other_updates_are_a_difference_and_no_matter_of_steps(compared, wrong, step):
    found = compared(program(BOTH + "    oa.step()\n    ob.step()\n"), program(BOTH + "    oa.step()\n" + wrong))
    assert found["verdict"] == "diverged", found["reasons"]
    assert found["pivot"]["step"] == step


def test_a_difference_before_the_sides_are_cut_apart_is_told(compared):
    swapped = f"    if step < 2:\n    {FIRST.strip()}\n    {SECOND.strip()}\n    else:\n    {SECOND.strip()}\n    {FIRST.strip()}\n"
    swapped = "\n".join(f"    {line}" if line.strip()[:2] in ("a.", "b.") else line for line in swapped.splitlines()) + "\n"
    wrong = "    if step == 1: a.data.mul_(1.5)\n"
    found = compared(program(FIRST + SECOND), program(wrong + swapped))
    assert (found["verdict"], found["pivot"]["step"]) == ("diverged", 1)
    assert "a.data.mul_" in found["pivot"]["suspect"]["text"]


def test_another_factor_in_the_first_step_that_is_cut_elsewhere_is_told(compared):
    scaled = [FIRST.replace("a.square()", f"(a * {factor}).square()") for factor in ("1.5", "2.5")]
    found = compared(program(scaled[0] + SECOND), program(SECOND + scaled[1]))
    assert found["verdict"] == "diverged", found["reasons"]
    assert (found["pivot"]["step"], found["pivot"]["origin"], found["pivot"]["suspect"]["text"]) == (0, "argument", "a * 2.5")


def test_a_resumed_run_is_counted_by_the_optimizer_that_counts(compared, tmp_path):
    """The other one is younger: its count of steps says nothing."""
    made = "oa, ob = torch.optim.Adam([a], lr=0.1), torch.optim.Adam([b], lr=0.1)"
    body = BOTH + "    oa.step()\n    if step > 0: ob.step()\n"
    whole = program(body, made=made)
    state = tmp_path / "state.pt"
    save = f"    if step == 1: torch.save((a, b, oa.state_dict(), ob.state_dict()), {str(state)!r})\n"
    load = (
        f"x, y, sa, sb = torch.load({str(state)!r}, weights_only=False)\n"
        "a.data.copy_(x.data); b.data.copy_(y.data); oa.load_state_dict(sa); ob.load_state_dict(sb)\n"
    )
    resumed = whole.replace("for step in range(4)", f"{load}for step in range(2, 4)")
    found = compared(whole + save, resumed)
    assert found["verdict"] == "identical", (found["pivot"], found["reasons"])
    assert found["compared"]["steps"][0] == 2
