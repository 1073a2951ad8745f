# ruff: noqa: E402  (torch may be missing)
"""Calls of CuPy kernels on torch's memory, over what stands for CuPy here."""

import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quick_sessions")]

from opguard_core.engines.quiet import quiet
from tests.support.capturing import capturing
from tests.support.outside.calling import called


class RawKernel:
    """Launched as ``kernel(grid, block, args)``; what it does is Python."""

    def __init__(self, code, name):
        self.code, self.name = code, name

    def __call__(self, grid, block, args, *, shared_mem=0):
        with quiet():
            self.code(*args)


RawKernel.__module__ = "cupy._core.raw"


class Array:
    """A CuPy array over torch's memory, as ``cupy.asarray(tensor)`` makes it."""

    def __init__(self, tensor):
        self.address, self.tensor = tensor.data_ptr(), tensor
        self.dtype, self.shape, self.strides = str(tensor.dtype)[6:], tuple(tensor.shape), tuple(4 * step for step in tensor.stride())
        self.__cuda_array_interface__ = {"data": (self.address, False)}


Array.__module__ = "cupy"


@pytest.fixture
def cupy(monkeypatch):
    module = ModuleType("cupy")
    module.RawKernel = RawKernel
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def double(array, address, n):
    array.tensor.mul_(2)


def test_a_kernel_made_while_we_look_observes_its_own_calls_once(cupy):
    x, y = torch.ones(4), torch.ones(3)
    earlier = cupy.RawKernel(double, "earlier")
    with capturing() as captured:
        kernel = cupy.RawKernel(double, "doubled")
        assert isinstance(kernel, RawKernel) and type(kernel).__name__ == "RawKernel"
        array = Array(x)
        kernel((1,), (4,), (array, y.data_ptr(), 4))
        called(kernel, (1,), (4,), (array, y.data_ptr(), 4))  # a rewritten callsite finds it observed already
        called(earlier, (1,), (4,), (array, y.data_ptr(), 4))
        x + 1
    assert cupy.RawKernel is RawKernel
    events = [event for event in captured.events if event.operator.startswith("cupy.")]
    assert [event.operator for event in events] == ["cupy.doubled", "cupy.doubled", "cupy.earlier"]
    assert events[0].args == "0=[1];1=[4];2=[Array,'address',4]"
    for event in events:
        assert {name: slot.direction for name, slot in captured.slots(event).items()} == {"in.2.0": "in", "in.2.1": "in", "mut.2.0": "mut"}
        assert captured.slots(event)["in.2.0"].shape == "4"
    assert captured.text(events[0]) == "kernel((1,), (4,), (array, y.data_ptr(), 4))"
    assert captured.slots(captured.of("add"))["in.0"].mix64 == captured.slots(events[2])["mut.2.0"].mix64


def test_a_kernel_that_fails_passes_its_error_on_and_one_without_our_memory_is_none_of_ours(cupy):
    def broken(number):
        raise RuntimeError("launch failed")

    with capturing() as captured:
        kernel = cupy.RawKernel(broken, "broken")
        with pytest.raises(RuntimeError, match="launch failed"):
            kernel((1,), (1,), (torch.ones(1),))
        with pytest.raises(RuntimeError, match="launch failed"):
            kernel((1,), (1,), (3,))
    assert [event.args for event in captured.events if event.operator.startswith("cupy.")] == ["0=[1];1=[1];2=[Tensor];raised=RuntimeError"]
