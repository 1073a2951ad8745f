"""Claim: a probe leaves no trace in the program: not in modes, autograd, versions, random streams, warnings or memory sharing."""

from __future__ import annotations

import random  # noqa: TID251 - the very stream that must not move

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from opguard_core.probe import tensor, torch_twin
from opguard_core.probe.tensor import fingerprint

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Sparse", "ignore:The PyTorch API of nested", "ignore:.*quantiz"),
]


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class WatchFunctions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def samples():
    t = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))
    leaf = torch.randn(5, requires_grad=True)
    return {
        "plain": t,
        "transposed": t.t(),
        "parameter": torch.nn.Parameter(t.clone()),
        "leaf": leaf,
        "inside a graph": leaf * 2,
        "conjugate": torch.complex(t, t).conj(),
        "negative": torch.complex(t, t).conj().imag,
        "sparse": t.relu().to_sparse(),
        "csr": t.relu().to_sparse_csr(),
        "nested": torch.nested.nested_tensor([t, t[:3]]),
        "jagged": torch.nested.nested_tensor([t, t[:3]], layout=torch.jagged),
        "quantised": torch.quantize_per_tensor(t, 0.1, 0, torch.qint8),
        "two": TwoTensor(t, t.clone()),
        "empty": torch.empty(0, 3),
    }


@pytest.fixture(params=["host", "twin"])
def probe(request, monkeypatch):
    """The probe as it is, and with all dense tensors going through the torch operations as on a foreign device."""
    if request.param == "twin":

        def as_on_another_device(t, flip=(0, 0)):
            with tensor._hidden():
                return torch_twin.fingerprint(t, ELEMENT_TYPES[str(t.dtype).removeprefix("torch.")], flip)

        monkeypatch.setattr(tensor, "_read_host", as_on_another_device)
    return fingerprint


def test_modes_see_nothing(probe):
    for name, t in samples().items():
        with Watch() as watch, WatchFunctions() as functions:
            found = probe(t)
        assert isinstance(found, Digests), (name, found)
        assert (watch.seen, functions.seen) == ([], []), name


def test_the_probe_works_inside_a_dispatch_handler(probe):
    t = torch.arange(12.0)
    found = []

    class Probing(Watch):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found.append(probe(args[0]))
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Probing() as mode:
        t.add(1)
    assert found == [fingerprint(t)]
    assert len(mode.seen) == 1


def test_a_default_device_does_not_move_the_probe(probe):
    t = torch.arange(12.0)
    expected = fingerprint(t)
    with torch.device("meta"):
        assert probe(t) == expected
        assert probe(t.to_sparse()) == fingerprint(t.to_sparse())


def test_versions_gradients_and_random_streams_stay(probe):
    everything = samples()
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    for name, t in everything.items():
        before = None if t.is_inference() else t._version, t.requires_grad, t.grad_fn, t.is_leaf
        probe(t)
        assert (None if t.is_inference() else t._version, t.requires_grad, t.grad_fn, t.is_leaf) == before, name
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]
    assert random.getstate() == states[2]


def content(t):
    """All bytes below a tensor, whatever its kind."""
    parts = {
        torch.sparse_coo: lambda: [t._indices(), t._values()],
        torch.sparse_csr: lambda: [t.crow_indices(), t.col_indices(), t.values()],
        torch.jagged: lambda: [t._values, t._offsets],
    }.get(t.layout, lambda: [t.a, t.b] if isinstance(t, TwoTensor) else [t])()
    return [bytes(part.untyped_storage().tolist()) for part in parts]


def test_no_byte_of_the_program_changes(probe):
    everything = samples()
    everything["complex128"] = torch.randn(40, dtype=torch.complex128).conj()
    everything["int64"] = torch.arange(40)
    for name, t in everything.items():
        before = content(t)
        probe(t)
        assert content(t) == before, name


def test_the_surrounding_modes_of_torch_stay(probe):
    sparse = torch.eye(3).to_sparse()
    with torch.enable_grad():
        probe(sparse)
        assert torch.is_grad_enabled()
    with torch.inference_mode():
        probe(sparse)
        assert torch.is_inference_mode_enabled()
    assert torch._C._len_torch_function_stack() == 0


def test_deterministic_algorithms_do_not_stop_the_probe(probe):
    torch.use_deterministic_algorithms(True)
    try:
        for t in samples().values():
            assert isinstance(probe(t), Digests)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_copy_on_write_tensor_stays_shared():
    t = torch.arange(32.0)
    lazy = torch._lazy_clone(t)
    view = torch._lazy_clone(t)[5:]
    assert fingerprint(lazy) == fingerprint(t)
    assert fingerprint(view) == fingerprint(torch.arange(5.0, 32.0))
    assert torch._C._is_cow_tensor(lazy)
    assert torch._C._is_cow_tensor(view)


def test_flushing_denormals_and_other_threads_settings_do_not_change_a_digest():
    small = torch.tensor([1e-7, 6e-8, -6e-8, 1.0], dtype=torch.float16)
    tiny = torch.tensor([1e-40, -1e-45, 1.0])
    expected = fingerprint(small), fingerprint(tiny)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        assert (fingerprint(small), fingerprint(tiny)) == expected
    finally:
        torch.set_flush_denormal(False)
