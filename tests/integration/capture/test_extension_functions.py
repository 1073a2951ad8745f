# ruff: noqa: E402  (torch may be missing)
"""What a native function is, whose it is, and which tensors a call of it gets: without any capture."""

import ctypes
import hashlib
import importlib.util
import math
from collections import namedtuple
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
import numpy as np

from opguard_core.contract.compare import compare as differences
from opguard_core.engines.addresses import Addresses
from opguard_core.engines.binaries import file_of
from opguard_core.engines.extensions import arguments_text, operator_of, results_of, tensors_in, wanted_by
from opguard_core.engines.storages import Storages
from tests.support.capturing import capturing
from tests.support.outside.building import extension
from tests.support.outside.calling import called


class Kernel:
    """Stands for a compiled function of a package that is not installed here."""


def made(module, kind, **facts):
    return type(kind, (), {"__module__": module, **facts})()


def test_native_functions_have_the_name_of_their_module():
    ext = extension()
    library = ctypes.CDLL(ext.__file__)
    assert operator_of(ext.scale_) == "extension.outside_extension.scale_"
    assert operator_of(library.plain_scale).startswith("extension.outside_extension_")
    assert operator_of(library.plain_scale).endswith(".plain_scale")
    assert operator_of(ctypes.memmove) == "extension.ctypes.memmove"
    assert operator_of(math.sqrt) == "extension.math.sqrt"
    assert operator_of(np.ndarray.__setitem__) == "extension.numpy.ndarray.__setitem__"
    meta = type("pybind11_type", (type,), {})
    fused = meta("Fused", (), {"__module__": "my_ext", "__call__": lambda self: None})
    plain = meta("Plain", (), {"__module__": "my_ext"})
    assert [operator_of(one) for one in (fused, fused(), plain())] == ["extension.my_ext.Fused", "extension.my_ext.Fused.__call__", ""]
    cython = made("_cython_3_0", "cython_function_or_method")
    cython.__qualname__ = "f"
    assert operator_of(cython) == "extension._cython_3_0.f"
    assert operator_of(made("cupy._core.raw", "RawKernel", name="my_kernel<float>")) == "cupy.my_kernel_float_"
    assert operator_of(made("numba.core.registry", "CPUDispatcher", py_func=test_native_functions_have_the_name_of_their_module)).endswith(
        "extension_functions.test_native_functions_have_the_name_of_their_module"
    )


def test_the_binary_of_a_function_is_a_fact_of_the_run():
    ext = extension()
    library = ctypes.CDLL(ext.__file__)
    assert [str(file_of(function)) for function in (ext.scale_, library.plain_scale)] == [ext.__file__] * 2
    assert file_of(math.sqrt) is not None and file_of(test_the_binary_of_a_function_is_a_fact_of_the_run) is None
    with capturing() as captured:
        called(ext.scale_, torch.ones(2), 2.0)
        called(ext.sum, torch.ones(2))
    known = captured.session._facts.contract["extension.code"]
    assert known == {"extension.outside_extension": hashlib.sha256(Path(ext.__file__).read_bytes()).hexdigest()[:16]}
    other = {"extension.code": {"extension.outside_extension": "0" * 16}}
    (found,) = differences({"extension.code": known}, other)
    assert (found.key, found.severity, found.conflicts) == ("extension.code", "arithmetic", False)


@pytest.mark.parametrize(
    "function",
    [
        torch.add,
        torch.ones(1).add_,
        torch.Tensor.add,
        torch.ops.aten.add,
        torch.ops.aten.add.Tensor,
        [].append,
        {}.get,
        len,
        print,
        int.__add__,
        "".join,
        test_native_functions_have_the_name_of_their_module,
        Kernel,
        Kernel(),
        torch.nn.Linear(1, 1),
        lambda: 0,
        None,
        made("cupy", "ndarray"),
    ],
    ids=lambda function: type(function).__name__ + "-" + getattr(function, "__name__", ""),
)
def test_other_callables_have_none(function):
    assert operator_of(function) == ""


def test_orders_name_functions_by_pattern_or_leave_out_what_is_known():
    named, auto = wanted_by(("my_ext.*", "cupy.gemm")), wanted_by(("auto",))
    wanted = ["extension.my_ext.scale_", "extension.numpy.dot", "extension.math.sqrt", "cupy.gemm", "cupy.add", "extension.apex_C.flatten"]
    assert [named(one) for one in wanted] == [True, False, False, True, False, False]
    assert [auto(one) for one in wanted] == [True, False, False, True, True, True]
    assert not wanted_by(())("extension.my_ext.scale_")


def test_tensors_are_found_in_containers_and_everything_else_is_text():
    x, y = torch.ones(2), torch.ones(3)
    pair = namedtuple("pair", "a b")(x, 4)
    args, kwargs = (
        (x, [y, (x, 3)], {"k": x, 5: y}, pair, 2.0, object()),
        {"mask": y, "eps": 0.5, "handle": 0x7F00_1234_5678, "big": 1 << 60},
    )
    found = [path for path, _ in tensors_in(args, kwargs)]
    assert found == ["in.0", "in.1.0", "in.1.1.0", "in.2.k", "in.2.5", "in.3.0", "kw.mask"]
    assert "handle=address" in arguments_text(args, kwargs)
    assert "big=1152921504606846976" in arguments_text(args, kwargs)
    assert arguments_text((x, [1] * 100), {}) == "1=list[100]"
    assert [path for path, _ in results_of((x, None, [y]))] == ["out.0", "out.2.0"]
    assert results_of(3.0) == []


def test_an_address_that_the_program_was_given_is_none_of_its_numbers_however_low_it_lies():
    class Shown:
        def was_shown(self, number):
            return number == 372736640

    assert arguments_text((372736640, [372736640, 4]), {"n": 5}) == "0=372736640;1=[372736640,4];n=5"
    assert arguments_text((372736640, [372736640, 4]), {"n": 5}, Shown()) == "0=address;1=['address',4];n=5"


def test_memory_that_the_program_has_shown_is_found_by_address_and_by_array():
    storages = Storages(lambda: 0)
    shown = Addresses(storages)
    x = torch.arange(12.0).view(3, 4)
    record = storages.of(x, 0)
    record.foreign = True
    shown.show(x, record)
    array = x.numpy()
    at = x.data_ptr()
    cases = {
        "number": at,
        "pointer": ctypes.c_void_p(at),
        "typed": array.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        "array": array,
    }
    for name, value in cases.items():
        found = shown.tensor_of(value)
        assert found is not None and found.data_ptr() == at and found.shape == x.shape, name
    part = shown.tensor_of(array[1:, ::2])
    assert (part.shape, part.stride(), part[0, 1].item()) == ((2, 2), (4, 2), 6)
    inside = shown.tensor_of(ctypes.c_void_p(at + 20))
    assert (inside.dtype, inside.numel()) == (torch.uint8, 48)
    assert shown.tensor_of(np.frombuffer(array, dtype=np.int32)).dtype == torch.int32
    backwards = shown.tensor_of(array[::-1])
    assert (backwards.dtype, backwards.numel()) == (torch.uint8, 48)
    for other in (at + 20, 7, "x", np.zeros(3), np.zeros(0), ctypes.c_void_p(None), ctypes.c_int(3), ctypes.c_long(at), object()):
        assert shown.tensor_of(other) is None


def test_nothing_is_found_where_memory_was():
    storages = Storages(lambda: 0)
    shown = Addresses(storages)

    def show():
        x = torch.ones(4)
        shown.show(x, storages.of(x, 0))
        return x.data_ptr()

    assert shown.tensor_of(show()) is None


@pytest.mark.full
def test_an_extension_of_pybind11_and_torchs_headers_is_observed_at_its_call():
    from tests.gpu import outside

    spec = importlib.util.spec_from_file_location("doubling", outside.PROGRAMS / "extension-kernel" / "reference" / "doubling.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    x, buffer, function = torch.arange(4.0), torch.empty(4), made.og_doubled.doubled
    assert operator_of(function) == "extension.og_doubled.doubled"
    with capturing() as captured:
        called(function, x, buffer, 0, 0)
        x * 2
    slots = captured.slots(captured.events[0])
    assert {name: slot.direction for name, slot in slots.items()} == {"in.0": "in", "in.1": "in", "mut.1": "mut"}
    assert slots["mut.1"].mix64 == captured.slots(captured.of("mul"))["out.0"].mix64
