"""Without a compiler launches come from Python: the same kernels, ring and answers, over the fake driver."""

from __future__ import annotations

import ctypes
import os
import threading

import numpy as np
import pytest

from opguard_core.fingerprint import cpu
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from opguard_core.probe import cuda
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import Deliveries, Layout, View, settle
from tests.support import emulated_cuda
from tests.support.fake_cuda import FakeCuda
from tests.support.twins import random_codes, strides_of

pytestmark = pytest.mark.torch


@pytest.fixture
def make(tmp_path):
    made = []

    def build(**how):
        made.append(FakeCuda(tmp_path, python=True, **how))
        return made[-1]

    yield build
    for one in made:
        one.close()


@pytest.fixture
def fake(make):
    return make()


def floats(number, seed=0, size=100):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size + k, dtype=np.float32) for k in range(number)]


def truth(array, dtype="float32"):
    return cpu.fingerprint(array.ctypes.data, dtype, array.shape, strides_of(array))


def only(records):
    (record,) = records
    return record


def assert_harmless(fake):
    counts = fake.counts()
    assert (counts.waits, counts.blocking_streams, counts.capture_violations) == (0, 0, 0)


@pytest.mark.parametrize("number", [1, 8, 9, 64, 100])
def test_every_tensor_of_an_operator_has_the_digests_of_the_cpu_twin(fake, number):
    arrays, stream = floats(number), fake.stream()
    tickets = fake.submit([fake.view(array, stream=stream) for array in arrays])
    found = fake.collect(tickets)
    assert [only(found[ticket]).digests for ticket in tickets] == [truth(array) for array in arrays]
    assert fake.counts().launches == -(-number // 8)
    assert_harmless(fake)


@pytest.mark.parametrize("emulated", [False, True])
def test_every_dtype_and_layout_arrives(make, emulated):
    emulate = ctypes.cast(emulated_cuda.library().og_emulate_kernel, ctypes.c_void_p).value if emulated else 0
    fake = make(emulator=emulate)
    rng, stream, wanted, views, kept = np.random.default_rng(1), fake.stream(), [], [], []
    for dtype in ELEMENT_TYPES:
        plain = random_codes(rng, (6, 70), dtype, 1)
        for array in (plain, plain.T, plain[::2, ::3], plain[:0], plain[:1, :1]):
            kept.append(array)
            wanted.append(truth(array, dtype))
            views.append(fake.view(array, dtype, stream))
    tickets = fake.submit(views)
    found = fake.collect(tickets)
    assert [only(found[ticket]).digests for ticket in tickets] == wanted


def test_conjugate_and_negative_views_read_as_what_they_mean(fake):
    array, stream, flip = floats(1)[0], fake.stream(), (1 << 63 | 1 << 31, 1 << 63 | 1 << 31)
    layout = Layout(ELEMENT_TYPES["float32"], array.shape, (1,), flip)
    (ticket,) = fake.submit([View(array, layout, array.ctypes.data, 0, stream)])
    assert only(fake.collect([ticket])[ticket]).digests == truth(-array)


def test_many_threads_and_streams_get_their_own(make):
    fake = make(ring_records=256)
    streams, arrays, asked = [fake.stream(), fake.stream(), 0], [floats(5, seed) for seed in range(6)], {}

    def work(place):
        for _ in range(10):
            tickets = fake.submit([fake.view(array, stream=streams[place % 3]) for array in arrays[place]])
            asked.update(zip(tickets, arrays[place], strict=True))

    threads = [threading.Thread(target=work, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = fake.collect(sorted(asked))
    assert all(only(found[ticket]).digests == truth(array) for ticket, array in asked.items())
    assert ctypes.c_longlong.in_dll(fake.driver, "stand_in_overlaps").value == 0
    assert_harmless(fake)


def test_a_full_ring_loses_tickets_by_name(make):
    fake = make(ring_records=64)
    stream, array = fake.stream(), floats(1)[0]
    fake.hold(stream)
    tickets = [fake.submit([fake.view(array, stream=stream)])[0] for _ in range(70)]
    fake.hold(stream, False)
    found = fake.collect(tickets)
    assert [ticket for ticket in tickets if only(found[ticket]).lost] == tickets[64:]


def test_torn_copies_are_made_again(fake):
    stream, arrays = fake.stream(), floats(60)
    fake.driver.fake_tear_copies(3)
    tickets = fake.submit([fake.view(array, stream=stream) for array in arrays])
    found = fake.collect(tickets)
    assert [only(found[ticket]).digests for ticket in tickets] == [truth(array) for array in arrays]
    assert fake.launcher.report()["copies_repeated"] == 3


def test_a_captured_launch_delivers_once_a_replay(fake):
    stream, arrays = fake.stream(), floats(3)
    fake.capture(stream)
    tickets = fake.submit([fake.view(array, stream=stream) for array in arrays])
    graph = fake.end_capture(stream)
    for occurrence in range(5):
        for array in arrays:
            array += 1
        fake.replay(graph, stream)
        records = fake.collect_records(3)
        assert [(record.ticket, record.occurrence, record.digests) for record in records] == [
            (ticket, occurrence, truth(array)) for ticket, array in zip(tickets, arrays, strict=True)
        ]
    assert_harmless(fake)


def test_room_for_captured_launches_ends_with_a_loss(make):
    fake = make(captured_bytes=4096)
    stream, array = fake.stream(), floats(1)[0]
    fake.capture(stream)
    tickets = [fake.submit([fake.view(array, stream=stream)])[0] for _ in range(6)]
    graph = fake.end_capture(stream)
    fake.replay(graph, stream)
    records = fake.collect_records(6)
    assert sorted(record.ticket for record in records if record.lost) == tickets[4:]


def test_failures_are_lost_tickets_and_reasons(fake):
    stream, array = fake.stream(), floats(1)[0]
    fake.collect(fake.submit([fake.view(array, stream=stream)]))
    fake.driver.fake_fail_launches(1)
    tickets = fake.submit([fake.view(array, stream=stream)])
    assert only(fake.collect(tickets)[tickets[0]]).lost
    fake.hold(stream)
    tickets = fake.submit([fake.view(array, stream=stream)])
    fake.driver.fake_kill_device(1)
    assert only(fake.collect(tickets)[tickets[0]]).lost
    (answer,) = fake.launcher.submit([fake.view(array, stream=stream)])
    assert isinstance(answer, Unreadable)
    assert answer.reason.startswith("device 0 failed: ")


def test_a_forked_child_owns_nothing(fake):
    stream, array = fake.stream(), floats(1)[0]
    fake.collect(fake.submit([fake.view(array, stream=stream)]))
    child = os.fork()
    if not child:
        answers = fake.launcher.submit([fake.view(array, stream=stream)])
        fake.launcher.close()
        os._exit(0 if answers == [Unreadable("the process was forked: the device belongs to its parent")] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_promises_are_kept_through_it(fake):
    stream, arrays = fake.stream(), floats(5)
    deliveries = Deliveries(fake.launcher, "the fake driver")
    promises = deliveries.ask_all([fake.view(array, stream=stream) for array in arrays])
    assert [settle(promise) for promise in promises] == [truth(array) for array in arrays]


def test_without_a_compiler_the_prober_launches_from_python(fake, monkeypatch):
    monkeypatch.setenv("OPGUARD_LIBCUDA", str(fake.path))
    monkeypatch.setenv("OPGUARD_NO_COMPILER", "1")
    monkeypatch.setattr(cuda, "_prober", None)
    monkeypatch.setattr(cuda.ending, "close_last", lambda _: None)
    found = cuda.prober()
    assert isinstance(found, cuda.Launcher)
    assert (found.api, found.reason) == (None, "launched from Python: OPGUARD_NO_COMPILER is set")


def test_closing_waits_for_what_is_on_its_way_and_says_what_it_gives_up(fake):
    stream, array = fake.stream(), floats(1)[0]
    fake.collect(fake.submit([fake.view(array, stream=stream)]))  # opens the device
    fake.driver.fake_hold_copies(1)
    tickets = fake.submit([fake.view(array, stream=stream)])
    closing = threading.Thread(target=fake.launcher.close, args=(60.0,))
    closing.start()
    fake.driver.fake_hold_copies(0)
    closing.join()
    assert only(fake.collect(tickets)[tickets[0]]).digests == truth(array)
    assert fake.launcher.report()["failed"] == ["device 0 was closed"]


def test_closing_gives_up_what_does_not_come_and_says_how_much(fake):
    stream, arrays = fake.stream(), floats(3)
    fake.hold(stream)
    tickets = fake.submit([fake.view(array, stream=stream) for array in arrays])
    fake.launcher.close(0.0)
    assert [only(found).lost for found in fake.collect(tickets).values()] == [True] * 3
    assert fake.launcher.report()["failed"] == ["device 0 was closed with 3 digests on their way"]
    fake.hold(stream, False)
