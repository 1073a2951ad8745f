"""Claim: the fingerprint in torch operations equals the host one bit for bit; hence, with the host tests, the oracle's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from opguard_core.probe import tensor, torch_twin

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")]
DTYPES = sorted(ELEMENT_TYPES)


def random_bits(shape, dtype_name, seed):
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, dtype_name)
    numel = int(torch.Size(shape).numel())
    raw = torch.randint(0, 256, (numel * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return (raw.to(torch.bool) if dtype == torch.bool else raw.view(dtype)).view(shape)


def both(t):
    return tensor.fingerprint(t), torch_twin.fingerprint(t, ELEMENT_TYPES[str(t.dtype).removeprefix("torch.")])


@st.composite
def views(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 7), max_size=4))
    t = random_bits(shape, dtype, draw(st.integers(0, 1 << 31)))
    t = t.permute(draw(st.permutations(range(t.dim()))))
    for dim in range(t.dim()):
        first = draw(st.integers(0, min(1, t.shape[dim])))
        t = t.narrow(dim, first, t.shape[dim] - first)
        if draw(st.booleans()):
            t = t[(slice(None),) * dim + (slice(None, None, 2),)]
    if draw(st.booleans()):
        t = t.expand(draw(st.integers(1, 3)), *t.shape)
    return t


@settings(max_examples=150, deadline=None, derandomize=True)
@given(views())
def test_twins_agree_on_small_views(t):
    host, twin = both(t)
    assert host == twin


@pytest.mark.parametrize("chunk", [16, 64])
def test_chunks_do_not_show(monkeypatch, chunk):
    """Small chunks meet every boundary case with small tensors: ragged ends, transposed views, conjugates, equal elements."""
    monkeypatch.setattr(torch_twin, "CHUNK_ELEMENTS", chunk)
    for dtype in DTYPES:
        for t in (random_bits((5, 31), dtype, 1), random_bits((5, 31), dtype, 2).t(), random_bits((1,), dtype, 3).expand(70)):
            host, twin = both(t)
            assert host == twin, (dtype, t.shape)


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_twins_agree_on_conjugate_and_negative_views(dtype):
    t = torch.randn(6, 5, dtype=torch.complex64, generator=torch.Generator().manual_seed(0)).to(dtype)
    for view in (t.conj(), t.t().conj(), t.conj().imag, torch._neg_view(t), torch._neg_view(t.conj())):
        conjugate, negative = view.is_conj(), view.is_neg()
        flip = tensor._sign_flips(view, conjugate=conjugate, negative=negative)
        element = ELEMENT_TYPES[str(view.dtype).removeprefix("torch.")]
        assert torch_twin.fingerprint(view, element, flip) == tensor.fingerprint(view)


def test_the_sums_stay_on_the_device_until_they_are_finished():
    found = torch_twin.sums(torch.arange(10.0), ELEMENT_TYPES["float32"])
    assert (found.dtype, found.shape, found.device) == (torch.int64, (5,), torch.device("cpu"))
