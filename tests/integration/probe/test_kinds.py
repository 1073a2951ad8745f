"""Every awkward kind of tensor: one flipped bit is seen, equal content is equal, or there is a reason."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from opguard_core.fingerprint import reference
from opguard_core.fingerprint.digest import Digests
from opguard_core.probe.tensor import Unreadable, fingerprint, kind

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:ComplexHalf support", "ignore:Sparse", "ignore:The PyTorch API of nested", "ignore:.*quantiz"),
]


def base():
    return torch.randn(6, 8, generator=torch.Generator().manual_seed(3))


def flip(t):
    """Flip the lowest bit of the first stored element, through memory: no operator of its own kind is needed."""
    raw = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())
    raw[t.storage_offset() * t.itemsize] ^= 1


def sparse(layout, **options):
    return base().relu().to_sparse(layout=layout, **options)


def jagged():
    return torch.nested.nested_tensor([base(), base()[:2]], layout=torch.jagged)


KINDS = {
    "plain": (base, lambda t: t),
    "bool": (lambda: base() > 0, lambda t: t),
    "float16": (lambda: base().half(), lambda t: t),
    "bfloat16": (lambda: base().bfloat16(), lambda t: t),
    "float8": (lambda: base().to(torch.float8_e4m3fn), lambda t: t),
    "float8 scale": (lambda: base().abs().to(torch.float8_e8m0fnu), lambda t: t),
    "packed float4": (lambda: base().view(torch.uint8).view(torch.float4_e2m1fn_x2), lambda t: t),
    "bits": (lambda: base().view(torch.uint8).view(torch.bits8), lambda t: t),
    "complex64": (lambda: torch.complex(base(), base() + 1), lambda t: t),
    "complex32": (lambda: torch.complex(base(), base() + 1).to(torch.complex32), lambda t: t),
    "transposed": (lambda: base().t(), lambda t: t),
    "every other": (lambda: base()[:, ::2], lambda t: t),
    "conjugate view": (lambda: torch.complex(base(), base() + 1).conj(), lambda t: t),
    "negative view": (lambda: torch.complex(base(), base() + 1).conj().imag, lambda t: t),
    "expanded": (lambda: base()[:1].expand(4, 8), lambda t: t),
    "parameter": (lambda: torch.nn.Parameter(base()), lambda t: t.detach()),
    "inference": (torch.inference_mode()(base), lambda t: t),
    "sparse_coo values": (lambda: sparse(torch.sparse_coo), lambda t: t._values()),
    "sparse_coo indices": (lambda: sparse(torch.sparse_coo), lambda t: t._indices()),
    "sparse_csr values": (lambda: sparse(torch.sparse_csr), lambda t: t.values()),
    "sparse_csc indices": (lambda: sparse(torch.sparse_csc), lambda t: t.row_indices()),
    "sparse_bsr": (lambda: sparse(torch.sparse_bsr, blocksize=(2, 2)), lambda t: t.crow_indices()),
    "sparse_bsc": (lambda: sparse(torch.sparse_bsc, blocksize=(2, 2)), lambda t: t.values()),
    "nested": (lambda: torch.nested.nested_tensor([base(), base()[:2]]), lambda t: t.unbind()[1]),
    "jagged": (jagged, lambda t: t._values),
    "quantised": (lambda: torch.quantize_per_tensor(base(), 0.1, 3, torch.qint8), lambda t: t),
    "quantised by channel": (
        lambda: torch.quantize_per_channel(base(), torch.rand(8) + 0.1, torch.zeros(8), 1, torch.quint8),
        lambda t: t.q_per_channel_scales(),
    ),
    "two tensors": (lambda: TwoTensor(base(), base() + 1), lambda t: t.b),
}


@pytest.mark.parametrize("name", KINDS)
def test_one_flipped_bit_is_seen(name):
    make, stored = KINDS[name]
    torch.manual_seed(0)
    t = make()
    before = fingerprint(t)
    assert isinstance(before, Digests), before
    assert fingerprint(t) == before
    flip(stored(t))
    after = fingerprint(t)
    assert isinstance(after, Digests)
    assert after.mix64 != before.mix64
    assert after.value64 != before.value64
    assert after.bag64 != before.bag64


def test_plain_tensors_are_the_oracle():
    for t in (base(), base().t(), base()[1:, 3], base().double(), base().to(torch.int16), torch.empty(0, 3), torch.tensor(2.0)):
        assert fingerprint(t) == reference.fingerprint(t.numpy())


def test_equal_content_is_equal_whatever_holds_it():
    t = base()
    expected = fingerprint(t)
    holders = [t.clone(), torch.nn.Parameter(t), t.t().contiguous().t(), torch.inference_mode()(t.clone)(), torch._lazy_clone(t)]
    assert [fingerprint(holder) for holder in holders] == [expected] * len(holders)
    c = torch.complex(t, t + 1)
    assert fingerprint(c.conj()) == fingerprint(c.conj().resolve_conj())
    assert fingerprint(c.conj().imag) == fingerprint(c.conj().imag.resolve_neg())
    assert fingerprint(torch._neg_view(c.conj())) == fingerprint(-c.conj())


def test_a_negative_view_of_nan_and_zero_flips_their_signs():
    t = torch.complex(torch.zeros(4), torch.tensor([float("nan"), 0.0, -0.0, 1.0]))
    signs = t.imag.clone().view(torch.int32) ^ torch.tensor(-(1 << 31), dtype=torch.int32)
    assert fingerprint(t.conj().imag) == fingerprint(signs.view(torch.float32))


def test_an_efficient_zero_tensor_reads_as_zeros():
    assert fingerprint(torch._efficientzerotensor(3, 5)) == fingerprint(torch.zeros(3, 5))


def test_sparse_and_dense_and_uncoalesced_are_not_the_same():
    coalesced = sparse(torch.sparse_coo).coalesce()
    twice = torch.cat([coalesced.indices(), coalesced.indices()], dim=1)
    uncoalesced = torch.sparse_coo_tensor(twice, torch.cat([coalesced.values()] * 2) / 2, coalesced.shape, check_invariants=False)
    found = {fingerprint(t).mix64 for t in (coalesced, uncoalesced, coalesced.to_dense(), coalesced.values())}
    assert len(found) == 4


def test_the_scale_and_the_zero_point_of_a_quantised_tensor_count():
    codes = torch.arange(-6, 6, dtype=torch.int8)
    makes = [torch._make_per_tensor_quantized_tensor(codes, scale, zero) for scale, zero in [(0.1, 0), (0.2, 0), (0.1, 1)]]
    assert len({fingerprint(t).mix64 for t in makes}) == 3


def test_functorch_wrappers_are_read_through():
    t = base()
    seen = []

    def look(x):
        seen.append(fingerprint(x))
        return x.sum()

    torch.func.grad(look)(t)
    assert seen == [fingerprint(t)]
    torch.vmap(look)(t)
    torch.vmap(look, in_dims=1)(t)
    assert len({digests.mix64 for digests in seen}) == 3


def test_a_functional_wrapper_shows_writes_through_its_aliases():
    t = base()
    seen = []

    def write(x):
        x.view(-1).add_(1)
        seen.append(fingerprint(x))
        return x

    torch.func.functionalize(write)(t.clone())
    assert seen == [fingerprint(t + 1)]


def test_a_distributed_tensor_is_its_local_shard():
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        try:
            mesh = init_device_mesh("cpu", (2,))
            t = distribute_tensor(base(), mesh, [Shard(0)])
            before = fingerprint(t)
            assert before == fingerprint(t._local_tensor)
            flip(t._local_tensor)
            assert fingerprint(t).mix64 != before.mix64
        finally:
            torch.distributed.destroy_process_group()


def test_an_asynchronous_collective_is_read_only_after_its_wait():
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    t = base()
    pending = AsyncCollectiveTensor(t)
    assert fingerprint(pending) == Unreadable("an asynchronous collective that nobody waited for yet")
    pending.completed = True
    assert fingerprint(pending) == fingerprint(t)


class Opaque(torch.Tensor):
    """A wrapper that does not say where its values are."""

    @staticmethod
    def __new__(cls, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"the probe dispatched {func}")


class WithMemory(Opaque):
    """A subclass over memory of its own."""

    @staticmethod
    def __new__(cls, t):
        return torch.Tensor._make_subclass(cls, t)


class Chatty(torch.Tensor):
    """A subclass whose every attribute access is user code."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"the probe called {func}")


def test_subclasses_are_read_from_memory_without_running_their_code():
    t = base()
    assert fingerprint(WithMemory(t)) == fingerprint(t)
    assert fingerprint(t.as_subclass(Chatty)) == fingerprint(t)


def freed():
    t = base()
    t.untyped_storage().resize_(0)
    return t


def shrunk():
    t = base()
    t.untyped_storage().resize_(40)
    return t


UNREADABLE = {
    "a meta tensor has no content": lambda: torch.empty(3, device="meta"),
    "a fake tensor has no content": lambda: FakeTensorMode().from_tensor(base()),
    "the layout _mkldnn is opaque": lambda: base().to_mkldnn(),
    "the storage was freed or is smaller than the tensor": freed,
    "the storage was freed or is smaller than the tensor ": shrunk,
    "a lazy parameter that has no shape yet": torch.nn.parameter.UninitializedParameter,
    "keeps its content out of reach": lambda: Opaque((3, 4)),
    "a meta tensor has no content ": lambda: sparse(torch.sparse_coo).to("meta"),
    "part of torch.testing._internal.two_tensor.TwoTensor: a meta tensor has no content": lambda: TwoTensor(
        torch.empty(2, device="meta"), torch.empty(2, device="meta")
    ),
    "packed quantised elements": lambda: torch.quantize_per_channel(base(), torch.rand(6) + 0.1, torch.zeros(6), 0, torch.quint4x2),
}


@pytest.mark.parametrize("reason", UNREADABLE)
def test_what_cannot_be_read_has_a_reason(reason):
    found = fingerprint(UNREADABLE[reason]())
    assert isinstance(found, Unreadable)
    assert reason.strip() in found.reason


def test_a_jagged_tensor_with_holes_is_unreadable():
    holes = torch.nested.nested_tensor_from_jagged(base(), torch.tensor([0, 3, 6]), lengths=torch.tensor([2, 2]))
    assert "holes" in fingerprint(holes).reason


def test_kind_names_the_dispatch_keys_that_matter():
    assert kind(base()) == kind(torch.nn.Parameter(base())) == {"CPU"}
    assert kind(torch.complex(base(), base()).conj()) == {"CPU", "Conjugate"}
