# ruff: noqa: E402  (torch may be missing)
"""Optimizer boundaries: which step counts, where a step ends, skipped updates."""

import contextlib
import threading

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.probe.tensor import fingerprint
from tests.support.capturing import capturing, step_on_ones
from tests.support.late_native import capturing_natively
from tests.support.native import native_or_skip


def test_a_step_is_bracketed_and_its_operators_are_optimizer():
    p = torch.nn.Parameter(torch.ones(2))
    with capturing() as seen:
        optimizer = torch.optim.Adam([p])
        step_on_ones(optimizer, p)
    names = [event.operator for event in seen.markers]
    assert names == ["opguard.run.begin", "opguard.optimizer.init", "opguard.optimizer.begin", "opguard.optimizer.end", "opguard.run.end"]
    begin, end = seen.markers[2].seq, seen.markers[3].seq
    assert {event.phase for event in seen.events if begin < event.seq < end} == {"optimizer"}


def test_of_two_optimizers_the_one_with_more_gradient_bytes_counts_whichever_steps_first():
    small, large = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(64))
    with capturing() as seen:
        discriminator, generator = torch.optim.SGD([small], lr=0.1), torch.optim.SGD([large], lr=0.1)
        for _ in range(2):
            step_on_ones(discriminator, small)
            step_on_ones(generator, large)
    ends = [
        (event.args.split(";")[1], event.args.split(";")[2], event.window)
        for event in seen.markers
        if event.operator == "opguard.optimizer.end"
    ]
    assert ends == [
        ("number=0", "counted=False", 0), ("number=1", "counted=True", 0),
        ("number=0", "counted=False", 1), ("number=1", "counted=True", 1),
    ]  # fmt: skip


def test_an_optimizer_that_never_steps_is_not_waited_for_for_ever():
    small, large = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(64))
    with capturing() as seen:
        unused = torch.optim.SGD([large], lr=0.1)  # noqa: F841
        used = torch.optim.SGD([small], lr=0.1)
        for _ in range(4):
            step_on_ones(used, small)
    assert [event.window for event in seen.markers if event.operator == "opguard.optimizer.end"] == [0, 0, 1, 2]


def _windows_of_steps(seen):
    return [event.window for event in seen.markers if event.operator == "opguard.optimizer.end"]


@pytest.mark.parametrize("parameters", ["the same", "of the same shapes, and state that was loaded"])
def test_an_optimizer_made_after_the_last_step_of_its_like_takes_its_place_though_that_is_still_alive(parameters):
    old = torch.nn.Parameter(torch.ones(8))
    new = old if parameters == "the same" else torch.nn.Parameter(torch.ones(8))
    with capturing() as seen:
        first = torch.optim.SGD([old], lr=0.1)
        step_on_ones(first, old)
        step_on_ones(first, old)
        resumed = torch.optim.SGD([new], lr=0.1)
        if new is not old:
            resumed.load_state_dict(first.state_dict())
        step_on_ones(resumed, new)
        step_on_ones(resumed, new)
    assert _windows_of_steps(seen) == [0, 1, 2, 3]


def test_an_optimizer_made_between_steps_of_another_kind_of_model_does_not_count():
    small, large = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(64))
    with capturing() as seen:
        generator = torch.optim.SGD([large], lr=0.1)
        step_on_ones(generator, large)
        discriminator = torch.optim.SGD([small], lr=0.1)
        for _ in range(2):
            step_on_ones(discriminator, small)
            step_on_ones(generator, large)
    assert _windows_of_steps(seen) == [0, 1, 1, 2, 2]


@pytest.mark.parametrize("made", ["before", "lazily"])
def test_a_second_one_of_the_same_shapes_stands_beside_the_first_whenever_it_was_made(made):
    """Two critics, or an inner loop beside an outer one: what counts must not depend on when the second was made."""
    one, two = torch.nn.Parameter(torch.ones(8)), torch.nn.Parameter(torch.ones(8))
    with capturing() as seen:
        first = torch.optim.SGD([one], lr=0.1)
        second = torch.optim.SGD([two], lr=0.1) if made == "before" else None
        step_on_ones(first, one)
        second = second or torch.optim.SGD([two], lr=0.1)
        for _ in range(2):
            step_on_ones(second, two)
            step_on_ones(first, one)
    assert _windows_of_steps(seen) == [0, 1, 1, 2, 2]


def _two_parts():
    """A model in two parts of unequal size, with an optimizer each; the first gets more gradient bytes."""
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    return net, [torch.optim.SGD(net[0].parameters(), lr=0.1, momentum=0.9), torch.optim.SGD(net[2].parameters(), lr=0.1)]


@pytest.mark.parametrize("engine", ["dispatch", "native"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("clears", ["before the backward", "after each step", "never"])
def test_the_order_in_which_the_parts_of_a_model_are_updated_moves_no_update_to_another_step(order, clears, engine):
    if engine == "native":
        native_or_skip()
    with contextlib.ExitStack() as stack:
        seen = stack.enter_context(capturing() if engine == "dispatch" else capturing_natively())
        net, optimizers = _two_parts()
        for _ in range(3):
            if clears == "before the backward":
                net.zero_grad()
            net(torch.ones(2, 6)).sum().backward()
            for at in order:
                optimizers[at].step()
                if clears == "after each step":
                    optimizers[at].zero_grad()
        after = {name: fingerprint(value.detach()).mix64 for name, value in net.named_parameters()}
    ends = [event.window for event in seen.sink.events if event.operator == "opguard.optimizer.end"]
    assert ends == [0, 0, 1, 1, 2, 2]
    states = [event for event in seen.sink.events if event.kind == "state"]
    assert [event.window for event in states] == [0, 1, 2, 3]
    last = {slot.slot: slot.mix64 for slot in seen.sink.slots[states[2].seq]}
    assert {name: last[f"param:{name}"] for name in after} == after, "the state of a step is that behind all of its updates"


def test_one_that_has_gradients_and_never_steps_is_waited_for_once():
    with capturing() as seen:
        net, (body, _idle) = _two_parts()
        for _ in range(3):
            net(torch.ones(2, 6)).sum().backward()
            body.step()
    assert _windows_of_steps(seen) == [0, 1, 2]
    backwards = [event.window for event in seen.markers if event.operator == "opguard.backward.begin"]
    forwards = [event.window for event in seen.markers if event.operator == "opguard.forward.begin"]
    assert backwards == forwards == [0, 1, 2]
    assert [event.window for event in seen.states] == [0, 1, 2, 3]


def test_one_that_steps_now_and_then_does_not_hold_a_window_open():
    with capturing() as seen:
        net, (body, head) = _two_parts()
        for step in range(4):
            net(torch.ones(2, 6)).sum().backward()
            body.step()
            if step % 2:
                head.step()
    assert [event.window for event in seen.markers if event.operator == "opguard.backward.begin"] == [0, 1, 2, 3]
    assert len(seen.states) == 5


def test_what_another_thread_does_meanwhile_is_no_next_iteration():
    def prefetch(net):
        next(iter(torch.utils.data.DataLoader([1, 2])))
        net(torch.ones(2, 6)).sum().backward()

    with capturing() as seen:
        net, (body, head) = _two_parts()
        net(torch.ones(2, 6)).sum().backward()
        body.step()
        thread = threading.Thread(target=prefetch, args=(torch.nn.Linear(6, 1),))
        thread.start()
        thread.join()
        head.step()
    assert _windows_of_steps(seen) == [0, 0]


def test_one_over_the_same_parameters_is_not_waited_for():
    with capturing() as seen:
        net, (body, _head) = _two_parts()
        later = torch.optim.Adam(net[0].parameters())  # for another phase of the training
        _head.param_groups[0]["params"] = []
        net(torch.ones(2, 6)).sum().backward()
        body.step()
        torch.ones(1) + 1
        del later
    assert seen.of("add").window == 1


def test_an_update_whose_window_still_waits_at_the_end_is_a_step():
    with capturing() as seen:
        net, (body, head) = _two_parts()
        net(torch.ones(2, 6)).sum().backward()
        body.step()
    assert [(event.window, event.args) for event in seen.states] == [(0, "why=update"), (1, "why=end")]
    assert head is not None


def test_updates_that_a_scaler_skips_end_one_step():
    with capturing() as seen:
        net, optimizers = _two_parts()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for bad in (True, False):
            loss = net(torch.ones(2, 6)).sum() * (float("inf") if bad else 1.0)
            scaler.scale(loss).backward()
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            net.zero_grad()
    ends = [event.window for event in seen.markers if "scaler" in event.operator or "optimizer.end" in event.operator]
    assert ends == [0, 0, 1, 1]


def test_an_optimizer_wrapped_in_another_counts_once():
    p = torch.nn.Parameter(torch.ones(2))

    class Outer(torch.optim.Optimizer):
        def __init__(self, inner):
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure=None):
            return self.inner.step()

    with capturing() as seen:
        outer = Outer(torch.optim.SGD([p], lr=0.1))
        step_on_ones(outer, p)
        step_on_ones(outer, p)
    ends = [event for event in seen.markers if event.operator == "opguard.optimizer.end"]
    assert [event.window for event in ends] == [0, 1]
    assert all("class=Outer" in event.args for event in ends)


def test_a_skipped_scaler_update_is_a_step():
    p = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with capturing() as seen:
        for bad in (True, False):
            loss = (p * (float("inf") if bad else 1.0)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    marks = [(event.operator, event.window) for event in seen.markers if "scaler" in event.operator or "optimizer.end" in event.operator]
    assert marks == [("opguard.scaler.skip", 0), ("opguard.optimizer.end", 1)]
    assert [event.window for event in seen.states] == [0, 1, 2]


def test_a_step_that_raises_leaves_no_phase_behind():
    p = torch.nn.Parameter(torch.ones(2))

    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise ValueError("no")

    with capturing() as seen:
        optimizer = Broken([p], lr=0.1)
        with pytest.raises(ValueError, match="no"):
            optimizer.step()
        torch.ones(2) + 1
        step_on_ones(torch.optim.SGD([p], lr=0.1), p)
    assert seen.of("add").phase == "data"


def test_a_closure_runs_its_forward_and_backward_inside_the_step():
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(1, 2)).pow(2).sum()
        loss.backward()
        return loss

    with capturing() as seen:
        optimizer.step(closure)
    phases = {event.operator.split(".")[1]: event.phase for event in seen.events}
    assert phases["addmm"] == "forward"
    assert phases["mm"] == "backward"
    assert [event.window for event in seen.states] == [0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_a_step_count_is_read_without_an_operator(dtype):
    from torch.utils._python_dispatch import TorchDispatchMode

    from opguard_core.engines.updates import _steps_in

    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter])
    steps = torch.tensor([5, 1234], dtype=dtype)[1]
    optimizer.state[parameter] = {"step": steps}
    with Refusing():
        assert _steps_in(optimizer) == 1234
    steps.untyped_storage().resize_(0)
    assert _steps_in(optimizer) == 0
