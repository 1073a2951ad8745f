# ruff: noqa: E402  (torch may be missing)
"""Random operators name the generator they consumed and what it held before; capture moves no stream."""

import random  # noqa: TID251  the program's own stream

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import numpy as np

from opguard_core.probe.tensor import fingerprint
from tests.support.capturing import capturing


def test_the_state_before_the_draw_is_recorded():
    torch.manual_seed(3)
    before = fingerprint(torch.get_rng_state()).mix64
    with capturing() as seen:
        torch.randn(3)
        torch.randn(3)
    first, second = seen.of("randn", 0), seen.of("randn", 1)
    assert (first.rng_stream, first.rng_before) == ("cpu", before)
    assert second.rng_before != before


def test_own_generators_are_numbered_by_first_use():
    a, b = torch.Generator(), torch.Generator()
    with capturing() as seen:
        torch.rand(2, generator=b)
        torch.rand(2, generator=a)
        torch.rand(2, generator=b)
        torch.ones(2).normal_(generator=a)
    assert [event.rng_stream for event in seen.events if event.rng_stream] == ["cpu#1", "cpu#2", "cpu#1", "cpu#2"]


def test_an_operator_that_could_draw_but_did_not_names_no_stream():
    q = torch.randn(1, 2, 4, 8)
    with capturing() as seen:
        torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.0)
        torch.nn.functional.dropout(q, 0.5, training=False)
    assert [event.operator for event in seen.events if event.rng_stream] == []


def test_dropout_draws_from_the_default_stream():
    with capturing() as seen:
        torch.nn.functional.dropout(torch.ones(8), 0.5)
    assert [event.rng_stream for event in seen.events if event.rng_stream] == ["cpu"]


@pytest.mark.parametrize("mode", ["verify", "full", "trusted"])
def test_no_stream_is_moved(mode):
    def program():
        random.seed(1), np.random.seed(2), torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(net.parameters())
        losses = []
        for batch in torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=2, shuffle=True):
            loss = net(batch).pow(2).mean() + random.random() + np.random.rand()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, [p.detach().clone() for p in net.parameters()], torch.get_rng_state(), random.getstate(), np.random.get_state()

    bare = program()
    with capturing(mode):
        seen = program()
    assert bare[0] == seen[0]
    assert all(torch.equal(a, b) for a, b in zip(bare[1], seen[1], strict=True))
    assert torch.equal(bare[2], seen[2])
    assert bare[3] == seen[3]
    assert all(np.array_equal(a, b) for a, b in zip(bare[4], seen[4], strict=True))
