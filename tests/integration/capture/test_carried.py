# ruff: noqa: E402  (torch may be missing)
"""Bytes that are known from a write or an earlier look are not looked at again; and what is carried is what a look would have found."""

import ctypes
import random  # noqa: TID251  a generator of its own
import sys
import threading

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.probe.tensor import fingerprint
from tests.support.capturing import capturing


def _reads(seen, operator="aten.add.Tensor"):
    return [seen.slots(event)["in.0"] for event in seen.events if event.operator == operator]


def test_a_view_with_the_same_bytes_is_not_read_again():
    with capturing("full") as seen:
        y = torch.ones(4, 6) * 2
        y.view(2, 2, 6) + 1
        y.t() + 1
        y.unsqueeze(0).transpose(1, 2) + 1
        y.view(torch.int32) + 1
        y[2:] + 1
        y[2:] + 1
        y[3:].mul_(2)
        y[2:] + 1
        y[:2] + 1
        y.t() + 1
    reads = _reads(seen)
    assert [slot.status for slot in reads] == ["carried", "probed", "carried", "probed", "probed", "carried", "probed", "probed", "probed"]
    assert reads[0].mix64 == seen.slots(seen.of("mul"))["out.0"].mix64
    assert reads[1].mix64 == reads[2].mix64
    assert reads[-1].mix64 == fingerprint(y.t()).mix64


def test_a_lazy_conjugate_is_not_taken_for_what_it_shows():
    z = torch.complex(torch.ones(3), torch.arange(3.0))
    expected = [z.conj(), z]
    with capturing("full") as seen:
        z = z * 1
        z.conj() + 1
        z + 1
        z.conj().mul_(2j)
        z + 1
        z.conj() + 1
        z.imag.add_(1)
        torch._neg_view(z.imag) + 1
    last = torch._neg_view(z.imag).resolve_neg()
    z = torch.complex(z.real, z.imag - 1)
    expected = [fingerprint(tensor.resolve_conj()).mix64 for tensor in (*expected, z, z.conj(), last)]
    assert [slot.mix64 for slot in _reads(seen)] == expected


@pytest.mark.parametrize("kind", ["fused", "foreach"])
def test_state_is_known_from_the_update_before(kind):
    """Torch's fused optimizers do not raise the version counters of what they write."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters(), **{kind: True})
    with capturing("full") as seen:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    last = max(event.window for event in seen.sink.events if event.kind == "operator")
    read = [
        (event.operator, slot.name)
        for event in seen.sink.events
        for slot in seen.slots(event, "in").values()
        if event.window == last and slot.status == "probed" and slot.name.startswith(("param:", "optim:"))
    ]
    # The layers read their weights transposed: other bytes, once an update.
    assert [name for operator, name in read if operator != "aten.addmm.default"] == []
    assert {name for _, name in read} == {"param:0.weight", "param:1.weight"}


def test_a_write_that_raised_no_counter_is_followed_by_one_that_did():
    x, grad, step = torch.ones(4), torch.ones(4), torch.ones(())
    with capturing("full") as seen:
        for _ in range(2):
            state = [torch.zeros(4), torch.zeros(4)]
            torch._fused_sgd_(
                [x], [grad], [], weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False, maximize=False, is_first_step=True
            )
            x + 1
            x.detach().mul_(2)
            x + 1
        del state, step
    fused, muls = ([seen.of(name, nth) for nth in (0, 1)] for name in ("_fused_sgd_", "mul_"))
    reads = _reads(seen)
    assert [slot.status for slot in reads] == ["carried"] * 4
    written = [seen.slots(fused[0])["mut.0.0"], seen.slots(muls[0])["mut.0"], seen.slots(fused[1])["mut.0.0"], seen.slots(muls[1])["mut.0"]]
    assert [slot.mix64 for slot in reads] == [slot.mix64 for slot in written]
    assert reads[-1].mix64 == fingerprint(x).mix64


def test_nothing_is_carried_past_the_replay_of_a_graph(monkeypatch):
    y = torch.ones(4)
    address = y.data_ptr()

    def replay(graph):
        ctypes.memset(address, 0, 16)
        return graph

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", replay)
    with capturing("full") as seen:
        y.mul_(2)
        y + 1
        assert torch.cuda.CUDAGraph.replay("graph") == "graph"
        y + 1
        y.view(2, 2) + 1
    assert [slot.status for slot in _reads(seen)] == ["carried", "probed", "carried"]
    assert _reads(seen)[1].mix64 == _reads(seen)[2].mix64 == fingerprint(torch.zeros(4)).mix64
    assert torch.cuda.CUDAGraph.replay is replay


class _InNativeCode(torch.optim.Optimizer):
    """As an extension's: its step writes memory by address."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            ctypes.memset(torch._C._data_address(parameter), 0, parameter.nbytes)


def test_an_update_that_no_operator_shows_is_seen_in_what_it_updates():
    layer = torch.nn.Linear(3, 2)
    optimizer, expected = _InNativeCode(layer.parameters()), []
    with capturing("full") as seen:
        for _ in range(2):
            expected.append([fingerprint(tensor).mix64 for tensor in (layer.bias, layer.weight.t())])
            layer(torch.ones(4, 3)).sum().backward()
            optimizer.step()
        left = [fingerprint(tensor).mix64 for tensor in (layer.weight, layer.bias)]
    read = [seen.slots(seen.of("addmm", nth)) for nth in (0, 1)]
    assert [[slots["in.0"].mix64, slots["in.2"].mix64] for slots in read] == expected
    state = seen.slots(seen.states[0])
    assert [state[f"param:{name}"].mix64 for name in ("weight", "bias")] == left


def test_what_is_only_read_is_looked_at_once_a_window():
    layer, table = torch.nn.Linear(3, 2), torch.ones(3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with capturing("full") as seen:
        for value in range(3):
            ctypes.memset(torch._C._data_address(table), value, table.nbytes)
            layer(table + 1).sum().backward()
            table + 1
            optimizer.step()
            optimizer.zero_grad()
    reads = [slot for slot in _reads(seen) if slot.shape == "3"]
    assert [slot.status for slot in reads] == ["probed", "carried"] * 3
    assert len({slot.mix64 for slot in reads}) == 3 and reads[-1].mix64 == fingerprint(table).mix64


def test_what_an_operator_of_others_was_given_to_read_is_looked_at_again():
    def write(x):
        ctypes.memset(torch._C._data_address(x), 1, x.nbytes)
        if len(x) == 3:
            raise ValueError

    library = torch.library.Library("opguard_test_carried", "DEF")
    library.define("reads(Tensor[] all) -> ()")
    library.impl("reads", lambda tensors: [write(x) for x in tensors] and None, "CPU")
    x, y, z = torch.ones(2), torch.ones(4), torch.ones(3)
    with capturing("full") as seen:
        for _ in range(2):
            x + 1
            y + 1
            torch.ops.opguard_test_carried.reads([x, y])
        x + 1
        z + 1
        with pytest.raises(ValueError):
            torch.ops.opguard_test_carried.reads([z])
        z + 1
    library._destroy()
    assert [slot.status for slot in _reads(seen)] == ["probed"] * 7
    assert [slot.mix64 for slot in _reads(seen)[-3::2]] == [fingerprint(tensor).mix64 for tensor in (x, z)]


def test_memory_that_another_process_may_write_from_now_on_is_always_looked_at():
    x, y = torch.ones(4), torch.ones(4)
    with capturing("full") as seen:
        y + 1
        for tensor in (x, y):
            tensor.share_memory_()
            for value in (1, 2):
                ctypes.memset(torch._C._data_address(tensor), value, 16)
                tensor + 1
    reads = _reads(seen)
    assert [slot.status for slot in reads] == ["probed"] * 5
    assert reads[1].mix64 == reads[3].mix64 != reads[2].mix64 == reads[4].mix64 == fingerprint(x).mix64


def _program(seed):
    """Random views, reads and writes over a few tensors."""
    draw = random.Random(seed)
    held = [torch.arange(24.0).view(2, 3, 4) + n for n in range(3)]
    views = (
        lambda x: x.reshape(-1) if x.is_contiguous() else x,
        lambda x: x.transpose(0, -1) if x.dim() else x,
        lambda x: x[1:] if x.dim() and len(x) > 1 else x,
        lambda x: x.unsqueeze(0),
        lambda x: x[..., ::2] if x.dim() else x,
        lambda x: x.view(torch.int32) if x.dtype == torch.float32 else x,
        lambda x: x.data,
    )
    for _ in range(150):
        x = draw.choice(held)
        for _ in range(draw.randint(0, 3)):
            x = draw.choice(views)(x)
        what = draw.choice(("read", "read", "raise", "fused"))
        if what == "read":
            x + 1
        elif what == "raise" or x.dtype != torch.float32:
            x.add_(1)
        else:
            torch._fused_sgd_(
                [x],
                [torch.ones_like(x)],
                [],
                weight_decay=0.0,
                momentum=0.0,
                lr=0.1,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=True,
            )


@pytest.mark.parametrize("seed", range(12))
def test_what_is_carried_is_what_a_look_would_have_found(seed):
    """Mode verify looks at everything."""
    found = []
    for mode in ("full", "verify"):
        with capturing(mode) as seen:
            _program(seed)
        found.append([(event.operator, slot.slot, slot.mix64) for event in seen.events for slot in seen.slots(event).values()])
        statuses = {slot.status for event in seen.events for slot in seen.slots(event, "in").values()} - {"metadata"}
        assert statuses == ({"probed", "carried"} if mode == "full" else {"probed"})
    assert found[0] == found[1]


def test_threads_that_work_on_parts_of_one_storage_do_not_get_in_each_others_way():
    parts = torch.zeros(64, 8).unbind()

    def work(mine):
        for turn in range(40):
            for part in mine:
                part.add_(1)
                part[turn % 4 :] + 1

    interval = sys.getswitchinterval()
    with capturing("full") as seen:
        sys.setswitchinterval(1e-6)
        threads = [threading.Thread(target=work, args=(parts[first::4],)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert "internal-error" not in seen.coverage["gaps"]
