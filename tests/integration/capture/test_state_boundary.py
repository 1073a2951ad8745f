# ruff: noqa: E402  (torch may be missing)
"""The state at the end of a step, the names of what it holds, and the capture window."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.probe.numbers import digests_of_number
from opguard_core.probe.tensor import fingerprint
from tests.support.capturing import capturing, step_on_ones
from tests.support.keeping import observe
from tests.support.native import native_or_skip


def test_the_state_boundary_names_everything_the_next_step_starts_from():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(net.parameters())
    with capturing() as seen:
        net(torch.randn(4, 2)).sum().backward()
        optimizer.step()
        expected = {f"param:{name}": fingerprint(p.detach()).mix64 for name, p in net.named_parameters()}
        expected |= {f"grad:{name}": fingerprint(p.grad).mix64 for name, p in net.named_parameters()}
        expected |= {f"buffer:{name}": fingerprint(b).mix64 for name, b in net.named_buffers()}
        for name, p in net.named_parameters():
            expected |= {f"optim:{name}.{key}": fingerprint(value).mix64 for key, value in optimizer.state[p].items()}
    slots = {name: slot.mix64 for name, slot in seen.slots(seen.states[0]).items()}
    assert {name: digest for name, digest in slots.items() if not name.startswith("rng:")} == expected
    assert {"rng:cpu", "rng:python", "rng:numpy"} <= set(slots)


def test_the_state_is_looked_at_once_more_at_the_end():
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with capturing() as seen:
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            net.weight.add_(1)
    last = seen.states[-1]
    assert last.args == "why=end"
    assert seen.slots(last)["param:weight"].mix64 == fingerprint(net.weight.detach()).mix64


def test_parameters_no_module_owns_are_named_by_their_place_in_the_optimizer():
    p = torch.nn.Parameter(torch.ones(2))
    with capturing() as seen:
        optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9)
        step_on_ones(optimizer, p)
    assert {"param:optimizer0.0.0", "optim:optimizer0.0.0.momentum_buffer"} <= set(seen.slots(seen.states[0]))


def test_slots_of_parameters_and_gradients_carry_their_names():
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with capturing() as seen:
        for _ in range(2):
            net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert seen.slots(seen.of("addmm"))["in.0"].name == "param:bias"
    update = next(event for event in seen.events if event.phase == "optimizer" and "add_" in event.operator)
    names = {slot.name for slot in seen.slots(update).values()}
    assert names == {"param:weight", "grad:weight"}
    accumulated = [event for event in seen.events if "AccumulateGrad" in event.node]
    assert any(slot.name.startswith("grad:") for event in accumulated for slot in seen.slots(event).values())


def test_a_wrapper_gives_parameters_the_names_of_the_bare_model():
    bare = torch.nn.Linear(2, 2)
    wrapped = torch.nn.DataParallel(torch.nn.Linear(2, 2))
    with capturing() as seen:
        bare(torch.ones(1, 2))
    with capturing() as other:
        wrapped(torch.ones(1, 2))
    assert seen.slots(seen.of("addmm"))["in.0"].name == other.slots(other.of("addmm"))["in.0"].name == "param:bias"


@pytest.mark.parametrize("mode", ["verify", "full"])
def test_a_window_records_its_steps_and_the_state_it_starts_from(mode):
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with capturing(mode, steps=(2, 4)) as seen:
        for _ in range(6):
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert {event.window for event in seen.events} == {2, 3}
    assert [event.window for event in seen.states] == [1, 2, 3]
    assert max(event.window for event in seen.markers) == 6


def test_memory_allocated_before_a_window_is_still_known_as_unwritten():
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.1)
    with capturing(steps=(1, 3)) as seen:
        scratch, half = torch.empty(4), torch.empty(4)
        half[:2].fill_(1)
        step_on_ones(optimizer, p)
        scratch + 1
        half[:2] + 1
        half + 1
    assert [seen.slots(event)["in.0"].status for event in seen.events if event.operator == "aten.add.Tensor"] == [
        "uninitialised", "probed", "uninitialised",
    ]  # fmt: skip


class Counting(torch.optim.Optimizer):
    """Keeps numbers in its state that no tensor holds."""

    def __init__(self, parameters, start):
        super().__init__(parameters, {"start": start})

    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["step"] = state.get("step", group["start"]) + 1
                state["seed"] = -group["start"]
                parameter.data.sub_(parameter.grad)


@pytest.mark.parametrize("engine", ["dispatch", "native"])
@pytest.mark.parametrize("resumed", [False, True])
def test_an_integer_of_any_size_in_an_optimizers_state_is_told_as_a_number(engine, resumed, tmp_path):
    if engine == "native":
        native_or_skip()

    def code():
        p = torch.nn.Parameter(torch.ones(2))
        optimizer = Counting([p], 2**70)
        if resumed:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: {"step": 2**70, "seed": 0}}})
        for _ in range(2):
            step_on_ones(optimizer, p)

    seen = observe(tmp_path / "run", code, engine=engine)
    assert not seen.gaps and not seen.trace.manifest.drops.events
    states = [
        {slot.slot.rpartition(".")[2]: slot for slot in table.slots_of(index) if slot.slot.startswith("optim:")}
        for table in seen.trace.iter_windows()
        for index in range(len(table))
        if table.event(index).kind == "state"
    ]
    assert len(states) == 3, "of two updates, and of the end, when the optimizer is gone"
    for count, state in enumerate(states[:2], 1):
        assert state.keys() == {"step", "seed"}
        assert state["step"].mix64 == digests_of_number(2**70 + count).mix64
        assert (state["seed"].dtype, state["seed"].shape, state["seed"].nbytes) == ("uint8", "16", 16)
