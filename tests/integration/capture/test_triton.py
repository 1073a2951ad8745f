# ruff: noqa: E402  (torch may be missing)
"""Launches of Triton kernels, over what stands for Triton here: which call is the boundary, and what it says was written."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quick_sessions")]

from opguard_core.engines.triton import TritonKernels
from tests.support.capturing import capturing
from tests.support.outside import fake_triton
from tests.support.outside.fake_triton import Autotuner, Heuristics, JITFunction, OldJITFunction


@pytest.fixture
def triton(monkeypatch):
    fake_triton.install(monkeypatch)


def add(x_ptr, y_ptr, out_ptr, n, BLOCK=16):
    out_ptr.copy_(x_ptr + y_ptr)


def slots(captured, event):
    return {name: slot.direction for name, slot in captured.slots(event).items()}


def launches(captured):
    return [event for event in captured.events if event.operator.startswith("triton.")]


def three(n=8):
    return torch.arange(float(n)), torch.ones(n), torch.empty(n)


def test_a_launch_is_an_event_that_writes_what_the_kernels_text_says(triton):
    kernel = JITFunction(add, "add")
    x, y, out = three()
    with capturing("full") as captured:
        kernel[(4,)](x, y, out, 8, BLOCK=16)
        kernel[lambda meta: (meta["n"] // 4, 1)](x, y, out_ptr=out, n=8)
        out + 1
    one, other = launches(captured)
    assert (one.operator, one.args, other.args) == ("triton.add", "n=8;BLOCK=16;grid=[4]", "n=8;grid=[2,1]")
    assert captured.text(one) == "kernel[(4,)](x, y, out, 8, BLOCK=16)"
    # The second writes the same bytes, and says so all the same.
    assert slots(captured, one) == slots(captured, other) == {"in.0": "in", "in.1": "in", "in.2": "in", "mut.2": "mut"}
    assert captured.slots(captured.of("aten.add.Tensor"))["in.0"].status == "carried"  # nobody else can have written there
    assert captured.session.engines["outside"] == {
        "active": True,
        "events": 2,
        "composite": 0,
        "written_by_ttir": 2,
        "written_by_comparison": 0,
    }


def test_without_a_text_arguments_are_compared_with_what_they_were(triton):
    x, y, out = three()
    with capturing() as captured:
        JITFunction(add)[(1,)](x, y, out, 8)
        JITFunction(add, "table")[(1,)](x, y, out, 8)  # a text that does not tell
        JITFunction(add, "lock")[(1,)](x, y, out, 8)  # the text of another kernel: its pointers have other names
    assert [list(captured.slots(event, "mut")) for event in launches(captured)] == [["mut.2"]] * 3
    assert captured.session.engines["outside"]["written_by_comparison"] == 3


def test_mode_verify_finds_what_a_text_did_not_say(triton):
    def sneaky(x_ptr, y_ptr, out_ptr, n):
        out_ptr.copy_(x_ptr)
        y_ptr.add_(1)

    x, y, out = three()
    with capturing("verify") as captured:
        JITFunction(sneaky, "add")[(1,)](x, y, out, 8)
    assert sorted(captured.slots(launches(captured)[0], "mut")) == ["mut.1", "mut.2"]
    assert captured.coverage["undeclared_writes"] == 1


def test_autotuning_and_heuristics_are_one_event_with_what_they_chose(triton):
    kernel = JITFunction(add, "add")
    tuned = Autotuner(Heuristics(kernel, {"EVEN": lambda given: given["n"] % 2 == 0}), [{"BLOCK": 16}, {"BLOCK": 32}])
    x, y, out = three()
    with capturing() as captured:
        tuned[lambda meta: (meta["BLOCK"],)](x, y, out, 8)
        tuned[lambda meta: (meta["BLOCK"],)](x, y, out, 8)
    assert kernel.trials == 4
    assert [event.args for event in launches(captured)] == ["n=8;BLOCK=32;grid=[32]"] * 2
    assert captured.operators() == ["add", "add"]  # what torch does between trials is no work of the program's
    assert [list(captured.slots(event, "mut")) for event in launches(captured)] == [["mut.2"]] * 2


def test_a_hook_of_a_trial_may_write_what_the_text_does_not_say(triton):
    tuned = Autotuner(JITFunction(add, "add"), [{"BLOCK": 16}])
    tuned.configs[0].pre_hook = print
    x, y, out = three()
    with capturing() as captured:
        tuned[(1,)](x, y, out, 8)
    assert captured.session.engines["outside"]["written_by_comparison"] == 1


def test_warming_up_is_no_launch_and_a_launch_that_fails_passes_its_error_on(triton):
    def fails(x_ptr, n):
        x_ptr.add_(1)
        raise ValueError("no such device")

    x = torch.ones(2)
    with capturing() as captured:
        JITFunction(add, "add").run(*three(), 8, grid=(1,), warmup=True)
        with pytest.raises(ValueError, match="no such device"):
            JITFunction(fails)[(1,)](x, 3)
        JITFunction(add, "add")[(1,)](*three(), 8)
    failed, added = launches(captured)
    assert failed.args == "n=3;grid=[1];raised=ValueError"
    assert slots(captured, failed) == {"in.0": "in", "mut.0": "mut"}
    assert list(captured.slots(added, "mut")) == ["mut.2"]


def test_tensors_in_tuples_and_behind_descriptors_are_pointers_too(triton):
    class TensorDescriptor:
        def __init__(self, base):
            self.base = base

    def both(pair, target, n):
        target.base.copy_(pair[0] + pair[1])

    x, y, out = three()
    with capturing() as captured:
        JITFunction(both)[(1,)]((x, y), TensorDescriptor(out), n=8)
    assert slots(captured, launches(captured)[0]) == {"in.0.0": "in", "in.0.1": "in", "in.1": "in", "mut.1": "mut"}


def test_kernels_with_launchers_of_their_own_as_older_triton_has_them(monkeypatch):
    fake_triton.install(monkeypatch, old=True)
    kernel = OldJITFunction(add, "add")
    with capturing() as captured:
        kernel[(2,)](*three(), 8)
    assert [event.args for event in launches(captured)] == ["n=8;grid=[2]"]
    assert list(captured.slots(launches(captured)[0], "mut")) == ["mut.2"]
    assert "_observed" not in repr(OldJITFunction.__getitem__)


def test_launches_are_left_as_they_were_when_the_capture_has_ended(triton):
    before = JITFunction.run, Autotuner.run, Heuristics.run
    with capturing():
        assert JITFunction.run is not before[0]
    assert (JITFunction.run, Autotuner.run, Heuristics.run) == before


def test_a_failure_of_ours_lets_the_kernel_run(triton, monkeypatch):
    x, y, out = three()
    with capturing() as captured:
        monkeypatch.setattr(TritonKernels, "_written", lambda *args: 1 / 0)
        JITFunction(add, "add")[(1,)](x, y, out, 8)
    assert torch.equal(out, x + y)
    assert captured.coverage["gaps"]["internal-error"]["examples"] == ["Triton kernel: ZeroDivisionError: division by zero"]
    assert list(captured.slots(launches(captured)[0], "mut")) == ["mut.2"]
