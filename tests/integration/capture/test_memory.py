# ruff: noqa: E402  (torch may be missing)
"""Storage identity, memory nobody has written, carried digests, lifetimes."""

import copy
import ctypes
import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import numpy as np

from opguard_core.probe.tensor import fingerprint
from tests.support.capturing import capturing


def test_serial_numbers_are_never_reused_although_addresses_are():
    with capturing() as seen:
        for _ in range(50):
            torch.ones(64) + 1
    outs = [seen.slots(event)["out.0"].storage for event in seen.events]
    assert len(set(outs)) == len(outs)


def test_fresh_memory_is_recorded_by_shape_until_all_of_it_is_written():
    with capturing() as seen:
        b = torch.empty(4, 4)
        b + 1
        b[:2].fill_(1.0)
        b[:2] + 1
        b[1:3] + 1
        b[2:, :2].fill_(1.0)
        b + 1
        b[2:, 2:].fill_(1.0)
        b + 1
    assert seen.slots(seen.of("empty"))["out.0"].status == "uninitialised"
    status = [seen.slots(event)["in.0"].status for event in seen.events if event.operator.startswith("aten.add")]
    assert status == ["uninitialised", "probed", "uninitialised", "uninitialised", "probed"]
    assert all(
        seen.slots(event)["in.0"].mix64 == 0
        for event in seen.events
        if seen.slots(event).get("in.0") and seen.slots(event)["in.0"].status == "uninitialised"
    )


@pytest.mark.parametrize("make", ["new_empty", "empty_like", "empty_strided", "resize_"])
def test_every_way_to_get_fresh_memory_is_known(make):
    x = torch.ones(4)
    with capturing() as seen:
        if make == "new_empty":
            y = x.new_empty(4)
        elif make == "empty_like":
            y = torch.empty_like(x)
        elif make == "empty_strided":
            y = torch.empty_strided((4,), (1,))
        else:
            y = torch.zeros(2)
            y.resize_(6)
        y + 1
    assert seen.slots(seen.of("add"))["in.0"].status == "uninitialised"


def test_a_storage_that_was_emptied_and_has_room_again_holds_nothing_until_it_is_written():
    kept = torch.ones(6)
    with capturing() as seen:
        kept.mul(2)
        kept.untyped_storage().resize_(0)  # as sharded training frees a gathered parameter
        kept.untyped_storage().resize_(24)
        torch.add(kept[:3], kept[3:])
        kept.copy_(torch.zeros(6))
        kept.mul(3)
    before, after = seen.slots(seen.of("mul", 0))["in.0"], seen.slots(seen.of("mul", 1))["in.0"]
    assert (before.status, after.status, before.storage) == ("probed", "probed", after.storage)
    assert [slot.status for slot in seen.slots(seen.of("add")).values()][:2] == ["uninitialised", "uninitialised"]


def test_a_workspace_that_the_kernel_leaves_undefined_is_not_compared():
    lstm = torch.nn.LSTM(4, 4)
    with capturing() as seen:
        lstm(torch.randn(3, 2, 4))
    event = seen.of("mkldnn_rnn_layer")
    assert seen.slots(event)["out.3"].status == "uninitialised"


def test_storage_wrapped_by_a_deepcopy_is_compared_where_it_is_first_read():
    x = torch.nn.Parameter(torch.arange(4.0))
    with capturing() as seen:
        y = copy.deepcopy(x)
        y.detach() + 1
    slot = seen.slots(seen.of("add"))["in.0"]
    assert (slot.status, slot.mix64) == ("probed", fingerprint(x.detach()).mix64)


def test_full_mode_carries_a_digest_from_the_write_to_the_read():
    x = torch.ones(4)
    with capturing("full") as seen:
        y = x * 2
        y + 1
        y.add_(1)
        y + 1
        y[:2] + 1
    reads = [seen.slots(event)["in.0"] for event in seen.events if event.operator == "aten.add.Tensor"]
    assert [slot.status for slot in reads] == ["carried", "carried", "probed"]
    assert reads[0].mix64 == seen.slots(seen.of("mul"))["out.0"].mix64
    assert reads[1].mix64 == seen.slots(seen.of("add_"))["mut.0"].mix64 == fingerprint(y).mix64


def test_verify_mode_carries_nothing_and_shows_a_silent_write():
    with capturing("verify") as seen:
        y = torch.ones(4) * 2
        y.numpy()[0] = 7
        y + 1
    produced, read = seen.slots(seen.of("mul"))["out.0"], seen.slots(seen.of("add"))["in.0"]
    assert read.status == "probed"
    assert produced.mix64 != read.mix64 == fingerprint(y).mix64


def test_full_mode_never_carries_across_a_numpy_alias_or_foreign_memory():
    array = np.ones(4, dtype=np.float32)
    shared = torch.from_numpy(array)
    with capturing("full") as seen:
        y = torch.ones(4) * 2
        alias = y.numpy()
        alias[0] = 9
        y + 1
        shared.add_(1)
        array[1] = 5
        shared + 2
    for nth, tensor in enumerate((y, shared)):
        slot = seen.slots(seen.of("add", nth))["in.0"]
        assert (slot.status, slot.mix64) == ("probed", fingerprint(tensor).mix64)


def test_full_mode_probes_again_after_a_write_through_a_view_or_data():
    with capturing("full") as seen:
        y = torch.ones(4) * 2
        y.data[1:].fill_(3.0)
        y + 1
        y.view(2, 2).t().mul_(2)
        y + 1
    for nth in (0, 1):
        assert seen.slots(seen.of("add", nth))["in.0"].status == "probed"
    assert seen.slots(seen.of("add", 1))["in.0"].mix64 == fingerprint(y).mix64


def test_trusted_mode_looks_past_the_allowlist_only():
    x = torch.randn(4, 4)
    with capturing("trusted") as seen:
        y = x @ x
        torch.softmax(y, 0)
    assert {slot.status for slot in seen.slots(seen.of("mm")).values()} == {"metadata"}
    assert seen.slots(seen.of("_softmax"))["in.0"].status == "probed"
    assert seen.slots(seen.of("_softmax"))["in.0"].mix64 == fingerprint(y).mix64


def test_capture_keeps_no_tensor_alive():
    with capturing():
        x = torch.ones(8) * 2
        tensor, storage = weakref.ref(x), x.untyped_storage()._weak_ref()
        assert not torch.UntypedStorage._expired(storage)
        del x
        assert tensor() is None
        assert torch.UntypedStorage._expired(storage)
        torch.UntypedStorage._free_weak_ref(storage)


def test_capture_makes_no_reference_cycles():
    def step():
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        return weakref.ref(model), weakref.ref(optimizer)

    step()  # the first optimizer of a process imports modules and leaves a cycle of torch's own
    gc.collect()
    gc.disable()
    try:
        assert [reference() for reference in step()] == [None, None]
        with capturing():
            assert [reference() for reference in step()] == [None, None]
    finally:
        gc.enable()


def test_lifetimes_say_when_a_storage_was_found_freed():
    kept = []
    with capturing() as seen:
        kept.append(torch.ones(4) * 2)
        (torch.ones(8) * 3).sum()
    by_serial = {row.storage: row for row in seen.sink.lifetimes}
    alive, dead = (by_serial[seen.slots(seen.of("mul", n))["out.0"].storage] for n in (0, 1))
    assert alive.dead_seq is None
    assert alive.born_seq == seen.of("mul", 0).seq
    assert alive.nbytes == 16
    assert dead.dead_seq is not None
    assert dead.dead_seq > seen.of("sum").seq
    assert len(by_serial) == len(seen.sink.lifetimes)


def test_what_was_alive_at_the_last_look_is_alive_at_the_end():
    def train():
        p = torch.nn.Parameter(torch.ones(4) * 2)
        optimizer = torch.optim.SGD([p], lr=0.1)
        p.grad = torch.ones(4)
        optimizer.step()
        torch.ones(8) * 3

    with capturing() as seen:
        train()
    by_serial = {row.storage: row.dead_seq for row in seen.sink.lifetimes}
    parameter, temporary = (seen.slots(seen.of("mul", n))["out.0"].storage for n in (0, 1))
    assert by_serial[parameter] is None
    assert by_serial[temporary] is not None


def test_a_failure_of_ours_is_a_gap_and_leaves_no_stale_digest(monkeypatch):
    from opguard_core.engines import probes

    with capturing("full") as seen:
        y = torch.ones(4) * 2
        with monkeypatch.context() as patched:
            patched.setattr(probes.Probes, "mutated", lambda *args, **kwargs: 1 / 0)
            y.add_(5)
        y + 1
    (gap,) = seen.gaps
    assert gap.operator == "aten.add_.Tensor"
    assert "ZeroDivisionError" in gap.args
    assert seen.coverage["gaps"]["internal-error"] == {
        "count": 1,
        "touches_state": True,
        "examples": ["after aten.add_.Tensor: ZeroDivisionError: division by zero"],
        "first_seq": gap.seq,
    }
    slot = seen.slots(seen.of("add"))["in.0"]
    assert (slot.status, slot.mix64) == ("probed", fingerprint(y).mix64)


def test_memory_lent_to_another_library_is_never_carried():
    with capturing("full") as seen:
        y = torch.ones(4) * 2
        np.from_dlpack(y)[0] = 9
        y + 1
    assert seen.slots(seen.of("add"))["in.0"].mix64 == fingerprint(y).mix64


def _through_a_capsule(y):
    torch.from_dlpack(torch.utils.dlpack.to_dlpack(y)).fill_(9)


def _through_an_address(y):
    ctypes.c_float.from_address(y.data_ptr()).value = 9


@pytest.mark.parametrize("write", [_through_a_capsule, _through_an_address])
def test_memory_whose_address_was_given_away_is_never_carried(write):
    with capturing("full") as seen:
        y = torch.ones(4) * 2
        write(y)
        y + 1
    assert y[0] == 9
    assert seen.slots(seen.of("add"))["in.0"].mix64 == fingerprint(y).mix64


@pytest.mark.parametrize("lend", [torch.from_numpy, torch.as_tensor, torch.asarray, torch.from_dlpack, torch.frombuffer])
def test_memory_of_another_library_is_never_carried(lend):
    array = np.ones(4, np.float32)
    with capturing("full") as seen:
        y = (lend(array, dtype=torch.float32) if lend is torch.frombuffer else lend(array)).mul_(2)
        array[0] = 9
        y + 1
    assert y[0] == 9
    assert seen.slots(seen.of("add"))["in.0"].mix64 == fingerprint(y).mix64
