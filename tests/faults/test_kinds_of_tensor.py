# ruff: noqa: E402  (torch may be missing)
"""For every awkward kind of tensor: one flipped bit in its content, and that boundary must differ.

Each program runs twice under capture, the second time with one bit of its data flipped in memory, which no operator shows.
The first difference has to be at the named operator's input. What cannot be read has to be listed in coverage.
"""

import ctypes

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from tests.support.capturing import capturing, first_difference


def flip(tensor, element=1, byte=0):
    """Flip the lowest bit of one byte of one element in memory: no operator, no version bump, no autograd."""
    storage = tensor.untyped_storage()
    memory = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())
    memory[element * tensor.element_size() + byte] ^= 1


PROGRAMS = {}


def program(name, operator, slot):
    def register(function):
        PROGRAMS[name] = (function, operator, slot)
        return function

    return register


@program("float32", "aten.mul.Tensor", "in.0")
def _plain(planted):
    x = torch.arange(8.0)
    flip(x) if planted else None
    return x * 2


for _dtype in ("float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "complex64", "complex128"):

    @program(_dtype, "aten.clone.default", "in.0")
    def _dtyped(planted, name=_dtype):
        x = torch.arange(8).to(getattr(torch, name))
        flip(x) if planted else None
        return x.clone()


for _dtype in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):

    @program(_dtype, "aten.clone.default", "in.0")
    def _float8(planted, name=_dtype):
        x = torch.arange(1, 9).float().to(getattr(torch, name))
        flip(x) if planted else None
        return x.clone()


for _dtype in ("uint16", "uint32", "uint64"):

    @program(_dtype, "aten.clone.default", "in.0")
    def _unsigned(planted, name=_dtype):
        x = torch.arange(8).to(getattr(torch, name))
        flip(x) if planted else None
        return x.clone()


@program("bool", "aten.logical_not.default", "in.0")
def _bool(planted):
    x = torch.tensor([True, False, True, True, False])
    flip(x) if planted else None
    return x.logical_not()


@program("one element", "aten.mul.Tensor", "in.0")
def _scalar(planted):
    x = torch.tensor(3.0)
    flip(x, 0) if planted else None
    return x * 2


@program("not contiguous", "aten.mul.Tensor", "in.0")
def _strided(planted):
    x = torch.arange(24.0).view(4, 6)
    flip(x, 13) if planted else None
    return x.t()[1:4, ::2] * 2


@program("expanded", "aten.mul.Tensor", "in.0")
def _expanded(planted):
    x = torch.arange(3.0)
    flip(x) if planted else None
    return x.expand(4, 3) * 2


@program("channels last", "aten.mul.Tensor", "in.0")
def _channels_last(planted):
    x = torch.arange(48.0).view(1, 3, 4, 4).to(memory_format=torch.channels_last)
    flip(x, 7) if planted else None
    return x * 2


@program("conjugate view", "aten.clone.default", "in.0")  # torch resolves the view first
def _conjugate(planted):
    x = torch.arange(8.0).to(torch.complex64)
    flip(x) if planted else None
    return x.conj() * 2


@program("negative view", "aten.clone.default", "in.0")
def _negative(planted):
    x = torch.arange(8.0).to(torch.complex64)
    flip(x, byte=4) if planted else None
    return x.conj().imag * 2


def _coo():
    indices = torch.tensor([[0, 1, 1], [2, 0, 0]])
    return torch.sparse_coo_tensor(indices, torch.arange(1.0, 4.0), (2, 3), check_invariants=False)


@program("sparse COO", "aten._coalesce.default", "in.0.values")
def _sparse(planted):
    x = _coo()
    flip(x._values()) if planted else None
    return x.coalesce()


@program("sparse COO indices", "aten._coalesce.default", "in.0.indices")
def _sparse_indices(planted):
    x = _coo()
    flip(x._indices(), 4) if planted else None
    return x.coalesce()


@program("sparse gradient of an embedding", "aten.mul.Tensor", "in.0.values")
def _sparse_gradient(planted):
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1, 3])).sum().backward()
    flip(table.weight.grad._values()) if planted else None
    return table.weight.grad * 2


@program("sparse CSR", "aten.clone.default", "in.0.values")
def _csr(planted):
    crow, col = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 1])
    x = torch.sparse_csr_tensor(crow, col, torch.arange(1.0, 4.0), (2, 3), check_invariants=False)
    flip(x.values()) if planted else None
    return x.clone()


@program("sparse CSC", "aten.clone.default", "in.0.row")
def _csc(planted):
    ccol, row = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 0, 1])
    x = torch.sparse_csc_tensor(ccol, row, torch.arange(1.0, 4.0), (2, 3), check_invariants=False)
    flip(x.row_indices()) if planted else None
    return x.clone()


@program("nested, strided", "aten.mul.Tensor", "in.0.values")
def _nested(planted):
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    flip(x.values()) if planted else None
    return x * 2


@program("nested, jagged", "aten.mul.Tensor", "in.0")
def _jagged(planted):
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    flip(x._values) if planted else None
    return x * 2


@program("quantized", "aten.dequantize.self", "in.0")
def _quantized(planted):
    x = torch.quantize_per_tensor(torch.arange(8.0), 0.5, 0, torch.qint8)
    flip(x) if planted else None
    return x.dequantize()


@program("opaque oneDNN layout", "aten.mul.Tensor", "in.0")
def _mkldnn(planted):
    x = torch.arange(8.0).to_mkldnn()
    (ctypes.c_ubyte * 32).from_address(torch.ops.mkldnn.data_ptr(x))[4] ^= 1 if planted else 0
    return x * x


@program("parameter", "aten.mul.Tensor", "in.0")
def _parameter(planted):
    x = torch.nn.Parameter(torch.arange(8.0))
    flip(x.data) if planted else None
    return x * 2


@program("inference tensor", "aten.mul.Tensor", "in.0")
def _inference(planted):
    with torch.inference_mode():
        x = torch.arange(8.0)
        flip(x) if planted else None
        return x * 2


class Labelled(torch.Tensor):
    """A subclass with `__torch_function__` only: plain memory."""


@program("subclass with a torch function", "aten.mul.Tensor", "in.0")
def _labelled(planted):
    x = torch.arange(8.0).as_subclass(Labelled)
    flip(x) if planted else None
    return x * 2


class Wrapped(torch.Tensor):
    """A subclass that holds its data in another tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self._inner = inner

    def __tensor_flatten__(self):
        return ["_inner"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        out = func(*[a._inner if isinstance(a, cls) else a for a in args], **(kwargs or {}))
        return cls(out) if isinstance(out, torch.Tensor) else out


@program("wrapper subclass", "aten.mul.Tensor", "in.0")
def _wrapped(planted):
    inner = torch.arange(8.0)
    flip(inner) if planted else None
    return Wrapped(inner) * 2


@program("functionalized", "aten.add.Tensor", "in.0")
def _functional(planted):
    x = torch.arange(8.0)
    flip(x) if planted else None

    def f(y):
        z = y.clone()
        z.add_(1)
        return z

    del f
    return torch.func.functionalize(lambda y: y.add_(1))(x)


@program("vmap", "aten.mul.Tensor", "in.0")
def _vmap(planted):
    x = torch.arange(8.0).view(2, 4)
    flip(x) if planted else None
    return torch.vmap(lambda row: row * 2)(x)


@program("from numpy", "aten.mul.Tensor", "in.0")
def _from_numpy(planted):
    import numpy as np

    x = torch.from_numpy(np.arange(8, dtype=np.float32))
    flip(x) if planted else None
    return x * 2


@pytest.fixture(autouse=True)
def quiet_prototypes():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_flipped_bit_shows_at_its_first_reader(name):
    run, operator, slot = PROGRAMS[name]
    run(False)  # torch makes some helper tensors once in a process
    torch.manual_seed(0)
    with capturing("verify") as reference:
        run(False)
    torch.manual_seed(0)
    with capturing("verify") as suspect:
        run(True)
    event, found = first_difference(reference, suspect)
    assert (event.operator.startswith(operator), found) == (True, slot), (event.operator, found)
    assert not reference.coverage["gaps"], reference.coverage


def test_an_empty_tensor_is_recorded_and_equal():
    with capturing() as seen:
        torch.empty(0, 3) * 2
    slot = seen.slots(seen.of("mul"))["in.0"]
    assert (slot.status, slot.shape, slot.nbytes) == ("probed", "0,3", 0)


def test_meta_and_fake_tensors_have_no_bytes_and_are_no_gap():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with capturing() as seen:
        torch.ones(3, device="meta") * 2
        with FakeTensorMode():
            torch.ones(3) * 2
    assert {slot.status for event in seen.events for slot in seen.slots(event).values() if slot.device == "meta"} == {"metadata"}
    assert not seen.coverage["gaps"]


def test_a_tensor_that_cannot_be_read_is_listed_with_its_reason_and_what_it_feeds():
    class Opaque(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=True)
            made.inner = inner
            return made

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError

    p = Opaque(torch.ones(2))
    with capturing() as seen:
        optimizer = torch.optim.SGD([p], lr=0.1)
        optimizer.step()
    gap = seen.coverage["gaps"]["unreadable-tensor"]
    assert gap["touches_state"]
    assert gap["count"] >= 1
    assert "Opaque" in gap["examples"][0]
    assert seen.slots(seen.states[0])["param:optimizer0.0.0"].status == "unreadable"
