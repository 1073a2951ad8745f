# ruff: noqa: E402  (torch may be missing)
"""Promises are kept whatever the order of deliveries, and what follows from several follows once all are there."""

import threading
import warnings
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.fingerprint.composite import combine
from opguard_core.fingerprint.digest import Digests
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from opguard_core.probe import backends, cuda, promise
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import Deliveries, Derived, Difference, Promise, Record, Unchanged, settle
from opguard_core.probe.tensor import fingerprint, fingerprint_host
from tests.support.late import LateBackend, answering_later


def kinds():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls sparse rows and nested tensors a prototype, once each
        return made()


def made():
    base = torch.arange(60, dtype=torch.float32).reshape(5, 12) / 7
    complexes = torch.complex(base, -base)
    return {
        "contiguous": base,
        "transposed": base.t(),
        "strided": base[::2, 1::3],
        "expanded": base[:1].expand(4, 12),
        "scalar": base[2, 3],
        "empty": base[:0],
        "conjugate": complexes.conj(),
        "imaginary of a conjugate": complexes.conj().imag,
        "bfloat16": base.bfloat16()[1:],
        "bool": base > 3,
        "sparse": torch.eye(4).to_sparse(),
        "compressed": torch.eye(4).to_sparse_csr(),
        "quantised": torch.quantize_per_tensor(base, 0.1, 3, torch.quint8),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)]),
        "parameter": torch.nn.Parameter(base.clone()),
    }


@pytest.mark.parametrize("name", kinds())
def test_a_tensor_that_is_digested_later_has_the_digests_it_has_at_once(name):
    tensor = kinds()[name]
    at_once = fingerprint(tensor)
    with answering_later():
        later = fingerprint(tensor)
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.numel():
            assert isinstance(later, Promise) and later.look() is None
        assert settle(later) == at_once
        assert isinstance(later, Digests) or later.nbytes in (at_once.nbytes, 0)


def test_the_digests_are_of_the_bytes_at_the_time_of_asking():
    tensor = torch.arange(8.0)
    before = fingerprint(tensor)
    with answering_later():
        first = fingerprint(tensor)
        tensor += 1
        second = fingerprint(tensor)
        assert (settle(second), settle(first)) == (fingerprint_host(tensor), before)


def test_what_cannot_be_read_is_said_at_once():
    freed = torch.arange(8.0)
    freed.untyped_storage().resize_(0)
    with answering_later() as backend:
        assert isinstance(fingerprint(freed), Unreadable)
        assert isinstance(fingerprint(torch.ones(2, device="meta")), Unreadable)
        assert backend._next == 1, "nothing was asked of the device"


def test_a_delivery_before_the_promise_is_ready_is_not_lost():
    class Eager(LateBackend):
        def submit(self, views):
            tickets = super().submit(views)
            self._due = tickets[-1]
            deliveries.deliver(self.take())
            return tickets

    tensor = torch.arange(8.0)
    with answering_later(Eager()):
        deliveries = backends.deliveries_for("cpu")
        known = fingerprint(tensor)
        assert known.look() == fingerprint_host(tensor)
        assert deliveries.num_outstanding == 0


def test_threads_that_ask_and_collect_at_once_lose_nothing():
    tensors = [torch.full((16,), float(k)) for k in range(300)]
    at_once = [fingerprint(tensor) for tensor in tensors]
    found = {}
    with answering_later(LateBackend(hold=3)):

        def ask(part):
            for k in range(part, 300, 4):
                found[k] = fingerprint(tensors[k])
                backends.collect()

        threads = [threading.Thread(target=ask, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [settle(found[k]) for k in range(300)] == at_once
        report = backends.report()["cpu"]
    assert (report["probes"], report["outstanding"], report["lost"]) == (300, 0, 0)


def kept(digests):
    one = Promise(None, digests.nbytes, 1)
    one.keep(digests)
    return one


def word(number):
    return Digests(number, number, number, number, False, 8)


def test_a_derived_promise_waits_for_all_its_parts_and_for_one_that_is_unreadable():
    missing = Promise(None, 8, 2)
    whole = Derived([word(1), missing], partial(combine, "pair"), lambda part: Unreadable("part of pair: " + part.reason), 16)
    assert whole.look() is None
    missing.keep(word(2), 77)
    assert (whole.look(), whole.t_device_ns) == (combine("pair", [word(1), word(2)]), 77)
    lost = Promise(None, 8, 3)
    whole = Derived([lost, word(1)], partial(combine, "pair"), lambda part: Unreadable("part of pair: " + part.reason), 16)
    lost.lose("gone")
    assert whole.look() == Unreadable("part of pair: gone")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (word(1), word(1), Unchanged()),
        (word(1), word(2), word(2)),
        (Unreadable("lost"), word(2), Unchanged()),
        (word(1), Unreadable("lost"), Unreadable("lost")),
    ],
)
def test_a_difference_is_the_later_look_only_where_the_two_differ(before, after, expected):
    first, second = Promise(None, 8, 1), Promise(None, 8, 2)
    difference = Difference(first, second)
    second.keep(after)
    assert difference.look() is None
    first.keep(before)
    assert difference.look() == expected
    if isinstance(before, Digests):
        second = Promise(None, 8, 2)
        second.keep(after)
        assert Difference(before.mix64, second).look() == expected


def test_who_waits_gives_up_a_device_that_delivers_nothing():
    with answering_later(LateBackend(deaf=True)):
        known = fingerprint(torch.ones(4))
        found = settle(known, patience_s=0.0)
        assert isinstance(found, Unreadable) and "did not deliver" in found.reason


def test_a_second_delivery_changes_nothing():
    one = kept(word(1))
    one.keep(word(2))
    one.lose("late")
    assert one.look() == word(1)


class Passed:
    """An event of a device without a device: passes when told to, or fails."""

    def __init__(self):
        self.passed = False

    def query(self):
        if self.passed == "fails":
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
        return self.passed


class TwinHere(backends.DeviceTwin):
    """The twin's bookkeeping with host memory and events in our hands."""

    def __init__(self):
        super().__init__()
        self.events, self.recording = [], False

    def _capturing(self):
        return self.recording

    def _pinned(self):
        return torch.zeros(1024 * 5, dtype=torch.int64)

    def _event(self):
        self.events.append(Passed())
        return self.events[-1]

    def _record(self, event, device):
        pass


def test_the_torch_twin_hands_over_what_has_passed_and_uses_its_memory_again():
    twin = TwinHere()
    deliveries = Deliveries(twin, "a test")
    layout = promise.Layout(ELEMENT_TYPES["float32"], (6,), (1,))
    tensors = [torch.arange(6.0) + k for k in range(3)]
    asked = [deliveries.ask(promise.View(t, layout, t.data_ptr(), 0, stream)) for t, stream in zip(tensors, (0, 0, 9), strict=True)]
    deliveries.collect()
    assert [one.look() for one in asked] == [None] * 3
    twin.events[1].passed = twin.events[2].passed = True  # the second of a stream cannot pass before the first is looked at
    deliveries.collect()
    assert [one.look() for one in asked] == [None, None, fingerprint(tensors[2])]
    twin.events[0].passed = True
    deliveries.collect()
    assert [one.look() for one in asked] == [fingerprint(t) for t in tensors]
    again = deliveries.ask(promise.View(tensors[0], layout, tensors[0].data_ptr(), 0, 0))
    deliveries.collect()
    assert again.look() == fingerprint(tensors[0]) and len(twin.events) == 3 and len(twin._blocks) == 1


def test_the_torch_twin_says_why_when_the_device_fails_and_while_a_graph_is_recorded():
    twin = TwinHere()
    deliveries = Deliveries(twin, "a test")
    layout = promise.Layout(ELEMENT_TYPES["float32"], (6,), (1,))
    t = torch.arange(6.0)
    view = promise.View(t, layout, t.data_ptr(), 0, 0)
    twin.recording = True
    assert "CUDA graph" in deliveries.ask(view).reason
    twin.recording = False
    asked = [deliveries.ask(view) for _ in range(2)]
    twin.events[0].passed = "fails"
    deliveries.collect()
    assert {one.look().reason for one in asked} == {"the device failed: CUDA error: an illegal memory access was encountered"}
    assert isinstance(deliveries.ask(view), Unreadable)


def test_records_of_unknown_tickets_wait_for_their_promise():
    deliveries = Deliveries(LateBackend(), "a test")
    assert deliveries.deliver([Record(5, word(5))]) == 1
    assert deliveries.num_outstanding == 0


class Prober:
    """What `probe.cuda.prober` gives, on no device."""

    def __init__(self, reason="", problem=None):
        self.reason, self.problem = reason, problem

    def open_device(self, device):
        return self.problem


@pytest.mark.parametrize(
    ("prober", "backend", "reason"),
    [
        (Prober(), "Prober", "the compiled kernels"),
        (Prober("launched from Python: no compiler"), "Prober", "launched from Python: no compiler"),
        (Prober(problem=Unreadable("CuPy is not installed")), "DeviceTwin", "torch operations: CuPy is not installed"),
        (Unreadable("no driver"), "DeviceTwin", "torch operations: no driver"),
    ],
)
def test_torch_operations_take_over_where_the_kernels_cannot_run_and_the_reason_is_kept(prober, backend, reason, monkeypatch):
    monkeypatch.setattr(cuda, "prober", lambda: prober)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    chosen = backends._choose()
    assert (type(chosen.backend).__name__, chosen.reason) == (backend, reason)


def test_the_kernels_can_be_left_out(monkeypatch):
    monkeypatch.setenv("OPGUARD_NO_KERNELS", "1")
    chosen = backends._choose()
    assert (chosen.backend.name, chosen.reason) == ("torch", "torch operations: OPGUARD_NO_KERNELS is set")


def test_what_is_asked_for_together_is_submitted_at_the_end_and_a_refusal_reaches_its_promise():
    class Refusing(LateBackend):
        def submit(self, views):
            return [
                Unreadable("no") if view.layout.numel == 3 else ticket for view, ticket in zip(views, super().submit(views), strict=True)
            ]

    with answering_later(Refusing()) as backend:
        with promise.TOGETHER:
            with promise.TOGETHER:
                first = fingerprint(torch.ones(4))
            second, third = fingerprint(torch.ones(3)), fingerprint(torch.ones(5))
            assert backend.launches == [1] and not third.ticket
        assert backend.launches == [1, 2]
        assert second.look() == Unreadable("no")
        assert (settle(first), settle(third)) == (fingerprint_host(torch.ones(4)), fingerprint_host(torch.ones(5)))
        assert fingerprint(torch.ones(3)) == Unreadable("no"), "alone, it is the answer"


def test_who_waits_for_what_was_not_asked_yet_asks_first():
    with answering_later(), promise.TOGETHER:
        assert settle(fingerprint(torch.ones(4))) == fingerprint_host(torch.ones(4))
