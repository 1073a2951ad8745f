"""A module as Inductor generates them, with kernels of Python that write as C++ does: by address, without any operator.

`loaded` binds it in the running capture as if Inductor had loaded it, so that every kind of launch is had without a compiler.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from opguard_core.capture import session as sessions

TEXT = """
import torch
from tests.support.launched import AsyncCompile, empty_strided_cpu, reinterpret_tensor
async_compile = AsyncCompile()

cpp_scale = async_compile.cpp_pybinding(['const float*', 'float*', 'const int64_t', 'const double'], r'''
// scale
extern "C" void kernel(const float* in_ptr0, float* out_ptr0, const int64_t ks0, const double ks1) {
    auto tmp0 = in_ptr0[x0];
    out_ptr0[static_cast<int64_t>(x0)] = tmp0;
}''')
cpp_add = async_compile.cpp_pybinding(['float*', 'const float*', 'const float*'], r'''
// add
extern "C" void kernel(float* in_out_ptr0, const float* in_ptr0, const float* in_ptr1) {
    auto tmp0 = in_out_ptr0[x0] + in_ptr0[x0];
    in_out_ptr0[static_cast<int64_t>(x0)] = tmp0;
}''')
cpp_sneak = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
// sneak
extern "C" void kernel(const float* in_ptr0, float* out_ptr0) {
    out_ptr0[static_cast<int64_t>(x0)] = in_ptr0[x0];
}''')
cpp_fails = async_compile.cpp_pybinding(['float*', 'const float*'], r'''
// fails
extern "C" void kernel(float* in_out_ptr0, const float* in_ptr0) {
    in_out_ptr0[static_cast<int64_t>(x0)] += in_ptr0[x0];
}''')
cpp_zeros = async_compile.cpp_pybinding(['float*'], r'''
// zeros
extern "C" void kernel(float* out_ptr0) {
    out_ptr0[static_cast<int64_t>(x0)] = 0;
}''')
cpp_unclear = async_compile.cpp_pybinding(['const float*', 'float*'], r'''
// scale
extern "C" void kernel(std::array<float, 2>& what, float* out_ptr0) {
    out_ptr0[static_cast<int64_t>(x0)] = 0;
}''')
triton_mul = async_compile.triton('triton_mul', '''
@triton_heuristics.pointwise(inductor_meta={'mutated_arg_names': ['in_out_ptr0']})
@triton.jit
def triton_mul(in_out_ptr0, in_ptr0, out_ptr0, ws_ptr, xnumel, XBLOCK : tl.constexpr):
    tmp0 = tl.load(in_out_ptr0 + (x0), xmask)
    tl.store(out_ptr0 + (x0), tmp0, xmask)
''', device_str='cpu')

def call(args):
    x, y = args
    buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
    cpp_scale(x, buf0, 4, 0.5)
    cpp_add(buf0, y, y)
    buf1 = buf0; del buf0  # reuse
    cpp_scale(y, buf1, 4, 2.0)
    buf2 = empty_strided_cpu((4, 8), (8, 1), torch.float32)
    buf3 = reinterpret_tensor(buf2, (4, 4), (8, 1), 0)
    buf4 = reinterpret_tensor(buf2, (4, 4), (8, 1), 4)
    cpp_scale(buf1, buf3, 4, 3.0)
    cpp_scale(buf1, buf4, 4, 4.0)
    cpp_add(reinterpret_tensor(buf2, (4, 4), (8, 1), 0), x, buf1)
    return buf1, buf2

def again(x):
    buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
    cpp_scale(x, buf0, 4, 0.5)
    buf1 = buf0; del buf0  # reuse
    cpp_scale(x, buf1, 4, 0.5)
    return buf1

def zeros():
    buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
    cpp_zeros(buf0)
    return buf0

def tuned(x):
    buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
    triton_mul.run(x, x, buf0, torch.empty(1), 16, stream=3)
    return buf0

def sneaks(x):
    buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
    cpp_sneak(x, buf0)
    return buf0

def fails(x, y, mistake):
    buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
    cpp_scale(y, buf0, 4, mistake)
    cpp_fails(x, buf0)

def odd(x, *others):
    buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
    for other in others:
        cpp_scale(x, buf0, other, 1.0)
    cpp_unclear(x, buf0, 4, 1.0)
    return buf0
"""

reinterpret_tensor = torch._C._dynamo.guards._reinterpret_tensor
empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu


def _floats(tensor: torch.Tensor) -> Any:
    """The memory of a tensor from its first element on, by its address as a launcher asks for it."""
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (ctypes.c_float * span).from_address(tensor.data_ptr())


def _places(tensor: torch.Tensor) -> list[int]:
    rows, columns = tensor.shape
    return [row * tensor.stride(0) + column * tensor.stride(1) for row in range(rows) for column in range(columns)]


def _each(out: torch.Tensor, *given: torch.Tensor) -> Iterator[tuple[Any, int, list[float]]]:
    memory, inputs = _floats(out), [(_floats(one), _places(one)) for one in given]
    for number, place in enumerate(_places(out)):
        yield memory, place, [values[places[number]] for values, places in inputs]


def _scale(x: torch.Tensor, out: torch.Tensor, size: Any, factor: Any) -> None:
    if not isinstance(factor, float):
        raise TypeError("no number")
    for memory, place, (value,) in _each(out, x):
        memory[place] = value * factor


def _add(out: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> None:
    for memory, place, (old, one, other) in _each(out, out, x, y):
        memory[place] = old + one + other


def _sneak(x: torch.Tensor, out: torch.Tensor) -> None:
    _scale(x, out, 0, 1.0)
    _floats(x)[0] = 9.0


def _fails(x: torch.Tensor, y: torch.Tensor) -> None:
    _floats(x)[1] += 1.0
    raise ArithmeticError("in the middle")


def _zeros(out: torch.Tensor) -> None:
    for memory, place, _ in _each(out):
        memory[place] = 0.0


class Tuner:
    """As torch's ``CachingAutotuner``; runs operators of torch, too."""

    def run(self, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, workspace: torch.Tensor, size: int, stream: int) -> None:
        assert stream == 3
        torch.ones(3).sum()
        for memory, place, (one, other) in _each(out, x, y):
            memory[place] = one * other
        _floats(x)[2] += 1.0


KERNELS: dict[str, Callable[..., None]] = {"scale": _scale, "add": _add, "sneak": _sneak, "fails": _fails, "zeros": _zeros}


class AsyncCompile:
    """Hands out `KERNELS`."""

    def cpp_pybinding(self, types: list[str], source: str) -> Callable[..., None]:
        """The one that the first line names."""
        return KERNELS[source.strip().splitlines()[0].removeprefix("// ")]

    def triton(self, name: str, source: str, device_str: str) -> Tuner:
        """The one there is."""
        return Tuner()


@contextlib.contextmanager
def loaded(folder: Path) -> Iterator[Any]:
    """The module, loaded anew; while a capture runs, also bound by it, and let go of afterwards."""
    path = folder / "generated.py"
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("opguard_test_generated", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        if sessions._active:
            sessions._active[-1].compiled._stand_by()
            sessions._active[-1].compiled._watch._met(module, (), "")
        yield module
    finally:
        del sys.modules[spec.name]


def launches() -> Any:
    """What observes the launches of the module in the running capture."""
    (bound,) = sessions._active[-1].compiled._watch._bound.values()
    return bound.launches
