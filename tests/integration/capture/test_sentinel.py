# ruff: noqa: E402  (torch may be missing)
"""Mode sentinel: no operator is looked at, and the state at the end of each step has one digest a kind."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import nn

from tests.support.capturing import capturing


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


class Rewritten(nn.Module):
    """The same state under other names, made in another order."""

    def __init__(self, plain):
        super().__init__()
        self.tail, self.body = plain.last, nn.ModuleDict({"n": plain.norm, "f": plain.first})

    def forward(self, x):
        return self.tail(self.body["n"](self.body["f"](x)))


def train(model, optimizer, steps=3, accumulate=1):
    for _ in range(steps):
        for _ in range(accumulate):
            model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def sums(seen):
    """Digests by kind, one dictionary a state event."""
    return [
        {row.slot: (row.shape, row.mix64) for row in seen.sink.slots[event.seq] if not row.slot.startswith("rng:")} for event in seen.states
    ]


def test_there_are_no_operators_and_one_state_a_step():
    torch.manual_seed(0)
    with capturing("sentinel") as seen:
        model = Plain()
        train(model, torch.optim.AdamW(model.parameters()))
    assert not seen.events
    assert [event.window for event in seen.states] == [0, 1, 2, 3]
    assert set(sums(seen)[0]) == {"param", "grad", "optim", "buffer"}
    assert sums(seen)[0]["param"][0] == "6,65"
    assert len({state["param"][1] for state in sums(seen)[:3]}) == 3
    assert not seen.sink.stacks, "a sentinel keeps no stacks and no sources"
    assert not seen.coverage["gaps"]


def test_nothing_stands_between_the_program_and_its_operators():
    before = nn.Module.__call__
    with capturing("sentinel"):
        assert torch._C._len_torch_dispatch_stack() == 0
        assert nn.Module.__call__ is before


def test_the_digests_depend_neither_on_names_nor_on_order():
    found = []
    for rewritten in (False, True):
        torch.manual_seed(0)
        with capturing("sentinel") as seen:
            plain = Plain()
            model = Rewritten(plain) if rewritten else plain
            parameters = list(model.parameters())
            train(model, torch.optim.SGD(parameters[::-1] if rewritten else parameters, lr=0.1, momentum=0.9))
        found.append(sums(seen))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda model, optimizer: model.last.weight.data.view(-1)[3:4].add_(1e-3),
        lambda model, optimizer: model.norm.running_var.add_(1e-3),
        lambda model, optimizer: optimizer.state[model.first.bias]["exp_avg_sq"].mul_(2),
    ],
    ids=["param", "buffer", "optim"],
)
def test_a_change_of_one_element_shows_in_its_kind_alone(spoil, request):
    def run(step_of_fault):
        torch.manual_seed(0)
        with capturing("sentinel") as seen:
            model = Plain()
            optimizer = torch.optim.AdamW(model.parameters())
            optimizer.register_step_post_hook(lambda *_: None)
            train(model, optimizer, steps=1)
            if step_of_fault:
                spoil(model, optimizer)
        return sums(seen)

    clean, faulty = run(False), run(True)
    assert clean[0] == faulty[0]
    last = {kind for kind in clean[1] if clean[1][kind] != faulty[1][kind]}
    assert last == {request.node.callspec.id}


def test_a_model_that_only_an_optimizer_knows_is_state():
    with capturing("sentinel") as seen:
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.grad = torch.ones(3)
        optimizer.step()
    assert sums(seen)[0]["param"][0] == "1,3"


def counts(seen):
    """What the step rules saw: operator, facts and window of the markers that count."""
    wanted = ("opguard.optimizer.end", "opguard.scaler.skip")
    return [(event.operator, event.args, event.window) for event in seen.markers if event.operator in wanted]


def accumulation():
    model = Plain()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=3)


def several_optimizers():
    model = Plain()
    small, large = torch.optim.SGD(model.last.parameters(), lr=0.1), torch.optim.SGD(model.first.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(6, 4)).sum().backward()
        small.step()
        large.step()


def skipped_update():
    weight = nn.Parameter(torch.ones(2))
    optimizer, scaler = torch.optim.SGD([weight], lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    for bad in (False, True, False):
        scaler.scale((weight * (float("inf") if bad else 1.0)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def resumed():
    model = Plain()
    optimizer = torch.optim.AdamW(model.parameters())
    state = optimizer.state_dict()
    zeros = {
        index: {"step": torch.tensor(7.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        for index, p in enumerate(model.parameters())
    }
    optimizer.load_state_dict({**state, "state": zeros})
    train(model, optimizer, steps=2)


def no_optimizer():
    model = Plain()
    for _ in range(2):
        model(torch.randn(6, 4)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None


@pytest.mark.parametrize("program", [accumulation, several_optimizers, skipped_update, resumed, no_optimizer])
def test_steps_are_counted_as_in_a_mode_that_sees_operators(program):
    found = []
    for mode in ("full", "sentinel"):
        with capturing(mode) as seen:
            program()
        found.append((counts(seen), [(event.window, event.args) for event in seen.states]))
    assert found[0] == found[1]
