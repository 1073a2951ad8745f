# ruff: noqa: E402  (torch may be missing)
"""Calls of a native extension, which the dispatcher never sees: what they read, write and return, whatever else goes on."""

import ctypes
import os
import threading
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.engines.outside import OutsideCalls
from tests.support.capturing import capturing
from tests.support.outside.building import extension
from tests.support.outside.calling import called


@pytest.fixture(scope="module")
def ext(quick_sessions):
    return extension()


def shown(captured, event):
    return {name: slot.direction for name, slot in captured.slots(event).items()}


def named(captured, name, nth=0):
    return [event for event in captured.events if event.operator == f"extension.outside_extension.{name}"][nth]


def digest(tensor):
    """What a probe says of these bytes."""
    with capturing() as captured:
        tensor + 0
    return captured.slots(captured.events[0])["in.0"].mix64


def test_what_a_function_reads_writes_and_returns_is_one_event_at_its_call(ext):
    x, y = torch.arange(6.0), torch.ones(6)
    with capturing() as captured:
        buffer = torch.empty(6)
        called(ext.fused, x, buffer, 2.0, shift=1.0)
        result = called(ext.scale_, y, 3.0)
        buffer + 1
    fused, scaled = named(captured, "fused"), named(captured, "scale_")
    assert result is y
    assert shown(captured, fused) == {"in.0": "in", "in.1": "in", "mut.1": "mut"}
    assert captured.slots(fused)["in.1"].status == "uninitialised"
    assert fused.args == "2=0x1.0000000000000p+1;shift=0x1.0000000000000p+0"
    assert captured.text(fused) == "called(ext.fused, x, buffer, 2.0, shift=1.0)"
    assert shown(captured, scaled) == {"in.0": "in", "mut.0": "mut"}  # what it returns is its argument
    assert captured.slots(captured.of("add"))["in.0"].mix64 == captured.slots(fused)["mut.1"].mix64
    assert captured.slots(scaled)["mut.0"].mix64 == digest(y)
    assert captured.coverage["gaps"] == {}


def test_what_it_leaves_alone_is_no_write_until_it_has_written_it_once(ext):
    x = torch.ones(4)
    with capturing() as captured:
        called(ext.scale_, x, 1.0)
        called(ext.scale_, x, 2.0)
        called(ext.scale_, x, 1.0)
    assert [list(shown(captured, named(captured, "scale_", nth))) for nth in range(3)] == [["in.0"], ["in.0", "mut.0"], ["in.0", "mut.0"]]


def test_a_number_that_it_tells_python_is_read_out_of_its_arguments(ext):
    with capturing() as captured:
        total = called(ext.sum, torch.ones(3))
    event = named(captured, "sum")
    assert total == 3
    assert (event.kind, shown(captured, event)) == ("read", {"in.0": "in"})


def test_an_error_passes_unchanged_and_the_event_says_what_was_written_by_then(ext):
    x = torch.zeros(4)
    with capturing() as captured:
        with pytest.raises(ValueError, match="half done") as raised:
            called(ext.fails, x)
        x + 1
    event = named(captured, "fails")
    assert event.args == "raised=ValueError"
    assert shown(captured, event) == {"in.0": "in", "mut.0": "mut"}
    assert captured.slots(captured.of("add"))["in.0"].mix64 == captured.slots(event)["mut.0"].mix64
    assert [frame.name for frame in raised.traceback][1:] == ["called", "_observed"]  # the test's own


@pytest.mark.parametrize("mode", ["verify", "full", "trusted"])
def test_operators_inside_keep_their_events_and_the_function_has_one_only_for_what_they_leave_unexplained(ext, mode):
    x = torch.arange(1.0, 5.0)
    with capturing(mode) as captured:
        called(ext.after, torch.neg, x, False)
        doubled = called(ext.after, torch.neg, x, True)
        called(ext.after, lambda t: torch.empty(4).view(2, 2).t().copy_(t.view(2, 2)).t().view(-1), x, True)  # as other bytes
        called(ext.after, lambda t: t.mul_(2), x, False)
    operators = [event.operator.partition(".")[2] for event in captured.events]
    if mode == "trusted":  # nobody looked at what the operators made
        assert operators.count("outside_extension.after") == 4
    else:
        after, copied = named(captured, "after"), named(captured, "after", 1)
        expected = ["neg.default", "neg.default", "outside_extension.after", "empty.memory_format", "copy_.default"]
        assert operators == [*expected, "outside_extension.after", "mul_.Tensor"]
        slots = captured.slots(after)
        assert {name: slot.status for name, slot in slots.items()} == {
            "in.1": "probed" if mode == "verify" else "carried",
            "in.out.0": "carried",
            "out.0": "probed",
        } or mode == "full"
        inner = captured.slots(captured.of("neg", 1))["out.0"]
        assert slots["in.out.0"].mix64 == inner.mix64 != slots["out.0"].mix64 == digest(doubled)
        assert shown(captured, copied) == {"in.1": "in", "out.0": "out"}
        assert captured.session.engines["outside"]["composite"] == 2
    assert captured.coverage["gaps"] == {}


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        made = torch.empty_like(x)
        called(extension().fused, x, made, 2.0)
        return made

    @staticmethod
    def backward(ctx, gradient):
        made = torch.empty(gradient.shape)
        called(extension().fused, gradient.contiguous(), made, 2.0)
        return made


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        called(extension().scale_, x, 2.0)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_a_kernel_in_a_backward_is_placed_there_and_linked_to_the_forward(ext):
    layer = torch.nn.Linear(3, 3)
    with capturing("full") as captured:
        hidden = InPlace.apply(Scaled.apply(layer(torch.ones(2, 3))) * 1)
        hidden.sum().backward()
    forward, backward = named(captured, "fused"), named(captured, "fused", 1)
    assert (forward.phase, backward.phase) == ("forward", "backward")
    assert backward.node.startswith("ScaledBackward")
    assert backward.forward_seq == forward.seq
    mul = next(event for event in captured.events if event.node == "InPlaceBackward")
    assert mul.forward_seq == named(captured, "scale_").seq
    assert torch.equal(layer.bias.grad, torch.full((3,), 8.0))


class Deep(torch.autograd.Function):
    """Its backward starts another backward inside, so deep that the engine goes on on a thread of its own."""

    seen: ClassVar = set()

    @staticmethod
    def forward(ctx, x, depth):
        ctx.depth = depth
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        Deep.seen.add(threading.get_ident())
        if ctx.depth:
            with torch.enable_grad():
                Deep.apply(torch.ones(2, requires_grad=True), ctx.depth - 1).sum().backward()
        else:
            called(extension().scale_, gradient.clone(), 2.0)
        return gradient * 1, None


def test_a_thread_of_autograds_own_works_for_the_thread_that_called_backward(ext):
    with capturing("full") as captured:
        Deep.apply(torch.ones(2, requires_grad=True), 70).sum().backward()
    event = named(captured, "scale_")
    assert len(Deep.seen) == 2
    assert (event.thread, event.phase, event.node) == ("main", "backward", "DeepBackward")
    assert captured.sink.events[event.forward_seq].operator == "aten.mul.Tensor"


def test_addresses_and_arrays_lead_back_to_the_tensors_whose_memory_they_are(ext):
    library = ctypes.CDLL(ext.__file__)
    scale = library.plain_scale
    scale.argtypes, scale.restype = (ctypes.c_void_p, ctypes.c_long, ctypes.c_double), None
    x, y = torch.ones(6), torch.ones(4, 3)
    with capturing() as captured:
        called(scale, x.data_ptr(), 6, 2.0)
        called(scale, ctypes.c_void_p(x[2:].data_ptr()), 4, 2.0)
        array = y.numpy()
        called(scale, array.ctypes.data_as(ctypes.c_void_p), 12, 3.0)
        called(scale, 12345678, 0, 1.0)
    events = [event for event in captured.events if event.operator.endswith("plain_scale")]
    slots = [captured.slots(event) for event in events]
    assert [sorted(one) for one in slots] == [["in.0", "mut.0"]] * 3
    assert [one["mut.0"].shape for one in slots] == ["6", "4", "4,3"]
    assert events[0].args == "0=address;1=6;2=0x1.0000000000000p+1"
    assert slots[0]["in.0"].storage == slots[1]["in.0"].storage != slots[2]["in.0"].storage
    assert y[0, 0] == 3


def test_lists_dicts_views_empty_and_wrapped_tensors(ext):
    wide = torch.arange(12.0).view(3, 4)
    many = [torch.ones(2) for _ in range(70)]
    with capturing() as captured:
        called(ext.scale_all, {"rows": wide[1], "none": torch.empty(0), "other": torch.ones(1)}, 2.0)
        called(ext.scale_all, many, 2.0)
        called(ext.scale_, wide.t().contiguous().t(), 2.0)
        called(ext.scale_, torch.nn.Parameter(torch.ones(3)).detach(), 2.0)
        called(ext.scale_all, [many[0], many[0]], 2.0)
    dicts, lists, strided, parameter, twice = (event for event in captured.events if event.operator.startswith("extension."))
    written = [name for name, slot in captured.slots(dicts).items() if slot.direction == "mut"]
    assert (sorted(captured.slots(dicts, "in")), written) == (["in.0.none", "in.0.other", "in.0.rows"], ["mut.0.rows", "mut.0.other"])
    assert len(captured.slots(lists, "mut")) == 70
    assert captured.slots(strided, "mut")["mut.0"].strides == "1,3"
    assert list(captured.slots(parameter, "mut")) == ["mut.0"]
    assert list(captured.slots(twice, "mut")) == ["mut.0.0"]


def test_a_write_beside_the_view_that_it_was_given_is_not_hidden_by_what_was_known_before(ext):
    whole = torch.zeros(8)
    scale = ctypes.CDLL(ext.__file__).plain_scale
    with capturing("full") as captured:
        whole.add_(1)
        view = whole[:4]
        called(scale, ctypes.c_void_p(view.data_ptr()), ctypes.c_long(8), ctypes.c_double(3.0))
        whole[4:] + 0
    event = next(event for event in captured.events if event.operator.endswith("plain_scale"))
    assert captured.slots(event)["mut.0"].shape == "4"
    read = captured.slots(captured.of("add"))["in.0"]
    assert (read.status, read.mix64) == ("probed", digest(torch.full((4,), 3.0)))


def test_each_thread_has_its_own_calls_and_a_call_may_be_inside_another(ext):
    def work():
        called(ext.scale_, torch.ones(3), 2.0)

    def inside(t):
        work()
        return called(ext.scale_, t + 1, 2.0)

    with capturing() as captured:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        made = called(ext.after, inside, torch.ones(2), True)
    events = [event for event in captured.events if event.operator.startswith("extension.")]
    assert [event.thread.startswith("Thread") for event in events] == [True] * 3 + [False] * 3
    assert [event.operator.rpartition(".")[2] for event in events[3:]] == ["scale_", "scale_", "after"]
    assert captured.slots(events[5])["in.out.0"].mix64 == captured.slots(events[4])["mut.0"].mix64
    assert made.tolist() == [8, 8]


def test_an_operator_of_the_dispatcher_that_calls_an_extension_is_one_event(ext):
    def kernel(x):
        made = torch.empty_like(x)
        called(ext.fused, x, made, 2.0)
        return made

    library = torch.library.Library("outside_tests", "DEF")
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", kernel, "CPU")
    with capturing() as captured:
        torch.ops.outside_tests.scaled(torch.ones(3))
    assert captured.operators() == ["ones.default", "scaled.default"]


def test_nothing_is_told_outside_the_steps_recorded_and_nothing_is_carried_over_them(ext):
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    with capturing("full", steps=(1, 2)) as captured:
        for _ in range(3):
            (weight * 1).sum().backward()
            called(ext.scale_, weight.data, 2.0)
            optimizer.step()
            optimizer.zero_grad()
    assert [event.window for event in captured.events if event.operator.startswith("extension.")] == [1]
    assert captured.coverage["gaps"] == {}
    assert captured.slots(named(captured, "scale_"))["in.0"].status == "probed"


def test_a_forked_child_observes_nothing(ext):
    with capturing() as captured:
        child = os.fork()
        if child == 0:
            called(ext.scale_, torch.ones(2), 2.0)
            os._exit(0)
        os.waitpid(child, 0)
        called(ext.scale_, torch.ones(2), 2.0)
    assert len([event for event in captured.events if event.operator.startswith("extension.")]) == 1


def test_a_failure_of_ours_is_a_gap_and_the_call_goes_on(ext, monkeypatch):
    def broken(self, call, frame):
        raise RuntimeError("ours")

    x = torch.ones(2)
    with capturing() as captured:
        monkeypatch.setattr(OutsideCalls, "_look", broken)
        called(ext.scale_, x, 2.0)
    assert x.tolist() == [2, 2]
    assert [gap.operator for gap in captured.gaps] == ["extension.outside_extension.scale_"]
    assert captured.coverage["gaps"]["internal-error"]["count"] == 1


def test_a_call_that_runs_when_the_capture_ends_is_a_gap(ext):
    with capturing() as captured:
        captured.session.outside.before("extension.slow.call", [("in.0", torch.ones(1))], "", None)
    assert captured.coverage["gaps"]["still-running-operator"]["examples"] == ["extension.slow.call"]
