"""From a tensor to its digests over a driver whose device is host memory: nothing lost, nothing mixed up, nobody waits for the device.

The kernels are stood in for by the CPU twin's own C (tests/support/fake_cuda/stand_in.c).
"""

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
MEBIBYTE = 1 << 20


@pytest.fixture
def fake(tmp_path):
    with_defaults = FakeCuda(tmp_path)
    yield with_defaults
    with_defaults.close()


@pytest.fixture
def make(tmp_path):
    made = []

    def build(**how):
        made.append(FakeCuda(tmp_path, **how))
        return made[-1]

    yield build
    for one in made:
        one.close()


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


@pytest.mark.parametrize("number", [1, 8, 9, 64, 65, 200])
def test_every_tensor_of_an_operator_has_the_digests_of_the_cpu_twin(fake, number):
    arrays, stream = floats(number), fake.stream()
    tickets = fake.submit([fake.view(array, stream=stream) for array in arrays])
    assert tickets == list(range(tickets[0], tickets[0] + number))
    found = fake.collect(tickets)
    for ticket, array in zip(tickets, arrays, strict=True):
        record = only(found[ticket])
        assert record.digests == truth(array)
        assert (record.occurrence, record.lost, record.region, record.statistics) == (0, False, 0, None)
    assert fake.counts().launches == -(-number // 64)
    assert_harmless(fake)


def test_every_dtype_and_layout_arrives(fake):
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


def test_what_a_mode_leaves_out_reads_zero(make):
    array = floats(1)[0]
    for flags, absent in ((cuda.NO_VALUE64, ("value64",)), (cuda.NO_ELEMENTS, ("value64", "bag64")), (cuda.STATISTICS, ())):
        fake = make(flags=flags)
        (ticket,) = fake.submit([fake.view(array, stream=fake.stream())])
        record = only(fake.collect([ticket])[ticket])
        assert record.digests == truth(array)._replace(**dict.fromkeys(absent, 0))
        assert (record.statistics is not None) == (flags == cuda.STATISTICS)


def test_regions_come_under_one_ticket(make):
    fake, array = make(flags=4 << cuda.REGIONS_SHIFT), floats(1, size=1000)[0]
    (ticket,) = fake.submit([fake.view(array, stream=fake.stream())])
    found: list[cuda.Delivered] = []
    while len(found) < 4:
        fake.launcher.wait(ticket, 60.0)
        found += fake.launcher.take_all()
    assert [record.region for record in found] == [1, 2, 3, 4]
    assert [record.digests.mix64 for record in found] == [
        truth(part).mix64 for part in (array[:252], array[252:504], array[504:756], array[756:])
    ]


def test_the_ring_wraps_many_times_and_nothing_is_lost(make):
    fake = make(ring_records=64)
    stream, arrays = fake.stream(), floats(50)
    wanted = [truth(array) for array in arrays]
    for _ in range(40):
        tickets = fake.submit([fake.view(array, stream=stream) for array in arrays])
        found = fake.collect(tickets)
        assert [only(found[ticket]).digests for ticket in tickets] == wanted
    assert fake.launcher.report()["lost"] == 0


def test_a_full_ring_loses_tickets_by_name_and_never_waits_for_the_device(make):
    fake = make(ring_records=64)
    stream, array = fake.stream(), floats(1)[0]
    fake.hold(stream)
    tickets = [fake.submit([fake.view(array, stream=stream)])[0] for _ in range(100)]
    fake.hold(stream, False)
    found = fake.collect(tickets)
    lost = [ticket for ticket in tickets if only(found[ticket]).lost]
    assert lost == tickets[64:]
    assert all(only(found[ticket]).digests == truth(array) for ticket in tickets[:64])
    report = fake.launcher.report()
    assert (report["lost"], report["delivered"]) == (36, 64)
    assert report["waits_for_copier"] == 1  # the copier was given a moment once, not once for each
    assert_harmless(fake)
    for _ in range(1000):  # the device may not have been told yet that there is room
        later = fake.submit([fake.view(array, stream=stream)])
        if not (delivered := only(fake.collect(later)[later[0]])).lost:
            break
    assert delivered.digests == truth(array)


def test_a_copier_that_does_not_get_to_run_costs_tickets_not_time(make):
    fake = make(ring_records=64)
    stream, array = fake.stream(), floats(1)[0]
    fake.collect(fake.submit([fake.view(array, stream=stream)]))
    fake.driver.fake_hold_copies(1)
    tickets = [fake.submit([fake.view(array, stream=stream)])[0] for _ in range(80)]
    fake.driver.fake_hold_copies(0)
    found = fake.collect(tickets)
    lost = [ticket for ticket in tickets if only(found[ticket]).lost]
    assert lost == tickets[-len(lost) :]
    assert len(lost) in (16, 17)  # the device may not have been told yet that the first one was taken


def test_eager_tickets_that_the_device_left_out_are_found_by_what_came_after_them(make):
    fake = make(ring_records=128)
    stream, other, arrays = fake.stream(), fake.stream(), floats(16)
    fake.capture(other)
    captured = fake.submit([fake.view(array, stream=other) for array in arrays])
    graph = fake.end_capture(other)
    fake.driver.fake_hold_copies(1)
    for _ in range(8):
        fake.replay(graph, other)  # 128 records: the ring is full, and submit cannot know
    fake.finish(other)
    tickets = fake.submit([fake.view(array, stream=stream) for array in arrays])
    fake.finish(stream)
    fake.driver.fake_hold_copies(0)
    records = fake.collect_records(128)
    assert {record.ticket for record in records} == set(captured)
    fake.finish_copies()
    later = fake.submit([fake.view(array, stream=stream) for array in arrays])
    found = fake.collect(tickets + later)
    assert [only(found[ticket]).lost for ticket in tickets] == [True] * 16
    assert [only(found[ticket]).digests for ticket in later] == [truth(array) for array in arrays]


def test_torn_copies_are_made_again(fake):
    stream, arrays = fake.stream(), floats(60)
    fake.driver.fake_tear_copies(3)
    tickets = fake.submit([fake.view(array, stream=stream) for array in arrays])
    found = fake.collect(tickets)
    assert [only(found[ticket]).digests for ticket in tickets] == [truth(array) for array in arrays]
    assert fake.launcher.report()["copies_repeated"] == 3


def test_many_threads_and_streams_get_their_own(make):
    fake = make(ring_records=4096)
    streams = [fake.stream(device) for device in (0, 0, 0, 1)] + [0]
    arrays = [floats(20, seed) for seed in range(10)]
    asked: dict[int, np.ndarray] = {}

    def work(place):
        stream = streams[place % len(streams)]
        device = 1 if place % len(streams) == 3 else 0
        for _ in range(10):
            tickets = fake.submit([fake.view(array, stream=stream, device=device) for array in arrays[place]])
            asked.update(zip(tickets, arrays[place], strict=True))

    threads = [threading.Thread(target=work, args=(place,)) for place in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 2000
    found = fake.collect(sorted(asked))
    assert all(only(found[ticket]).digests == truth(array) for ticket, array in asked.items())
    assert overlaps(fake) == 0
    assert_harmless(fake)


def overlaps(fake):
    """How often two launches held the same scratch at a time."""
    return ctypes.c_longlong.in_dll(fake.driver, "stand_in_overlaps").value


def test_more_streams_than_there_is_scratch_for_make_way_for_one_another(fake):
    array = floats(1)[0]
    for _ in range(300):
        tickets = fake.submit([fake.view(array, stream=fake.stream())])
        assert only(fake.collect(tickets)[tickets[0]]).digests == truth(array)


def test_a_captured_launch_delivers_once_a_replay(fake):
    stream, arrays = fake.stream(), floats(3)
    warm = fake.submit([fake.view(arrays[0], stream=stream)])
    fake.collect(warm)
    fake.finish(stream)
    allocations = fake.counts().allocations
    fake.capture(stream)
    tickets = fake.submit([fake.view(array, stream=stream) for array in arrays])
    graph = fake.end_capture(stream)
    assert fake.launcher.take_all() == []
    seen = []
    for occurrence in range(5):
        for array in arrays:
            array += 1
        wanted = [truth(array) for array in arrays]
        fake.replay(graph, stream)
        records = fake.collect_records(3)
        assert [record.digests for record in records] == wanted
        assert [(record.ticket, record.occurrence) for record in records] == [(ticket, occurrence) for ticket in tickets]
        seen += wanted
    assert len(set(seen)) == 15
    assert fake.counts().allocations == allocations
    assert_harmless(fake)


def test_the_first_probe_of_a_program_may_be_a_captured_one(fake):
    stream, array = fake.stream(), floats(1)[0]
    fake.capture(stream)
    (ticket,) = fake.submit([fake.view(array, stream=stream)])
    graph = fake.end_capture(stream)
    fake.replay(graph, stream)
    record = only(fake.collect_records(1))
    assert (record.ticket, record.occurrence, record.digests) == (ticket, 0, truth(array))
    assert_harmless(fake)


def test_a_capture_elsewhere_is_not_ended_by_our_copies(fake):
    mine, other, array = fake.stream(), fake.stream(), floats(1)[0]
    fake.capture(other)
    tickets = fake.submit([fake.view(array, stream=mine)])
    assert only(fake.collect(tickets)[tickets[0]]).digests == truth(array)
    fake.end_capture(other)
    assert_harmless(fake)


def test_the_legacy_stream_is_not_launched_on_while_another_is_captured(fake):
    stream, array = fake.stream(), floats(1)[0]
    fake.capture(stream)
    (answer,) = fake.launcher.submit([fake.view(array, stream=0)])
    assert isinstance(answer, Unreadable)
    fake.end_capture(stream)
    assert fake.counts().launches == 0


def test_room_for_captured_launches_ends_with_a_loss_not_with_an_allocation(make):
    fake = make(captured_bytes=4096)
    stream, arrays = fake.stream(), floats(30)
    fake.capture(stream)
    tickets = [fake.submit([fake.view(array, stream=stream)])[0] for array in arrays]
    graph = fake.end_capture(stream)
    fake.replay(graph, stream)
    records = fake.collect_records(30)
    lost = sorted(record.ticket for record in records if record.lost)
    assert lost == tickets[len(tickets) - len(lost) :]
    assert 0 < len(lost) < 30
    assert fake.counts().allocations == 1


def test_replays_that_overrun_the_ring_are_told_as_lost_occurrences(make):
    fake = make(ring_records=64)
    stream, arrays = fake.stream(), floats(16)
    fake.capture(stream)
    tickets = fake.submit([fake.view(array, stream=stream) for array in arrays])
    graph = fake.end_capture(stream)
    fake.driver.fake_hold_copies(1)
    for _ in range(40):
        fake.replay(graph, stream)
    fake.finish(stream)
    fake.driver.fake_hold_copies(0)
    while fake.launcher.report()["delivered"] < 64:
        pass
    fake.finish_copies()
    fake.replay(graph, stream)
    records = []
    while sum(record.occurrence == 40 for record in records) < 16:
        records += fake.launcher.take_all()
    assert sorted((record.ticket, record.occurrence) for record in records) == [
        (ticket, occurrence) for ticket in tickets for occurrence in range(41)
    ]
    assert {record.occurrence for record in records if record.lost} == set(range(4, 40))
    report = fake.launcher.report()
    assert (report["left_out_on_device"], report["replays_lost"]) == (36 * 16, 36 * 16)


def test_a_launch_that_fails_is_a_lost_ticket(fake):
    stream, array = fake.stream(), floats(1)[0]
    fake.collect(fake.submit([fake.view(array, stream=stream)]))
    fake.driver.fake_fail_launches(1)
    tickets = fake.submit([fake.view(array, stream=stream)])
    tickets += fake.submit([fake.view(array, stream=stream)])
    found = fake.collect(tickets)
    assert [only(found[ticket]).lost for ticket in tickets] == [True, False]


def test_a_view_that_cannot_be_read_is_lost_alone(fake):
    stream, arrays = fake.stream(), floats(3)
    views = [fake.view(array, stream=stream) for array in arrays]
    views[1] = views[1]._replace(address=0)
    tickets = fake.submit(views)
    found = fake.collect(tickets)
    assert [only(found[ticket]).lost for ticket in tickets] == [False, True, False]


def test_a_device_without_memory_for_us_is_a_reason(fake):
    fake.driver.fake_fail_allocations(1)
    (answer,) = fake.launcher.submit([fake.view(floats(1)[0])])
    assert answer == Unreadable("device memory of device 0: CUDA_ERROR_OUT_OF_MEMORY")
    assert fake.launcher.report()["failed"] == [answer.reason]


def test_a_device_that_dies_takes_its_tickets_with_it_and_says_so(fake):
    stream, array = fake.stream(), floats(1)[0]
    fake.collect(fake.submit([fake.view(array, stream=stream)]))
    fake.hold(stream)
    tickets = fake.submit([fake.view(array, stream=stream) for _ in range(5)])
    fake.driver.fake_kill_device(1)
    found = fake.collect(tickets)
    assert all(only(found[ticket]).lost for ticket in tickets)
    assert fake.launcher.report()["failed"] == ["device 0 failed: CUDA_ERROR_LAUNCH_FAILED"]
    (answer,) = fake.launcher.submit([fake.view(array, stream=stream)])
    assert answer == Unreadable("device 0 failed: CUDA_ERROR_LAUNCH_FAILED")


def test_a_thread_without_the_devices_context_is_given_it_for_the_launch_only(fake):
    stream, array = fake.stream(), floats(1)[0]
    tickets = fake.submit([fake.view(array, stream=stream), fake.view(array, stream=fake.stream(1), device=1)])
    fake.collect(tickets)
    context = ctypes.c_void_p(1)
    fake.driver.cuCtxGetCurrent(ctypes.byref(context))
    assert context.value is None
    assert fake.counts().pushes > 0


def test_our_device_memory_is_stated_and_bounded(make):
    fake = make(ring_records=cuda.RING_RECORDS, captured_bytes=cuda.CAPTURED_BYTES)
    stream, arrays = fake.stream(), floats(64)
    for _ in range(20):
        fake.collect(fake.submit([fake.view(array, stream=stream) for array in arrays]))
    report, counts = fake.launcher.report(), fake.counts()
    assert report["device_bytes"] == counts.device_bytes <= 64 * MEBIBYTE
    assert report["pinned_bytes"] == counts.pinned_bytes <= MEBIBYTE
    assert counts.allocations == 1
    assert (report["tickets"], report["delivered"], report["lost"]) == (1280, 1280, 0)


def test_a_forked_child_owns_nothing(fake):
    stream, array = fake.stream(), floats(1)[0]
    fake.collect(fake.submit([fake.view(array, stream=stream)]))
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            answers = fake.launcher.submit([fake.view(array, stream=stream)]), fake.launcher.take_all()
            fake.launcher.wait(1, 1.0)
            fake.launcher.close()
            os.write(writer, repr(answers).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as stream_of_child:
        said = stream_of_child.read()
    assert said == repr(([Unreadable("the process was forked: the device belongs to its parent")], []))
    tickets = fake.submit([fake.view(array, stream=stream)])
    assert only(fake.collect(tickets)[tickets[0]]).digests == truth(array)


def test_the_kernels_own_text_gives_the_same_through_it(make):
    emulate = ctypes.cast(emulated_cuda.library().og_emulate_kernel, ctypes.c_void_p).value
    fake = make(flags=cuda.STATISTICS, emulator=emulate)
    rng, stream, views, wanted, kept = np.random.default_rng(2), fake.stream(), [], [], []
    for dtype in ("float32", "bfloat16", "int8", "float64", "float8_e4m3fn", "complex64"):
        plain = random_codes(rng, (9, 70), dtype, 1)
        for array in (plain, plain.T, plain[:, ::3]):
            kept.append(array)
            wanted.append(truth(array, dtype))
            views.append(fake.view(array, dtype, stream))
    tickets = fake.submit(views)
    found = fake.collect(tickets)
    assert [only(found[ticket]).digests for ticket in tickets] == wanted
    assert all(only(found[ticket]).statistics for ticket in tickets)
    values, graph_stream = np.zeros(5000, dtype=np.float32), fake.stream()
    fake.capture(graph_stream)
    (captured,) = fake.submit([fake.view(values, stream=graph_stream)])
    graph = fake.end_capture(graph_stream)
    for occurrence in range(3):
        values += np.arange(5000, dtype=np.float32)
        fake.replay(graph, graph_stream)
        record = only(fake.collect_records(1))
        assert (record.ticket, record.occurrence, record.digests) == (captured, occurrence, truth(values))
    assert ctypes.c_longlong.in_dll(fake.driver, "stand_in_emulation_failures").value == 0


def test_nothing_is_remembered_of_what_has_arrived(make):
    for flags, records in ((0, 1), (4 << cuda.REGIONS_SHIFT, 4)):
        fake = make(flags=flags)
        tickets = fake.submit([fake.view(array) for array in floats(5)])
        fake.collect(tickets[:1])
        found = 0
        while fake.launcher._nbytes:
            found += len(fake.launcher.take_all())
        assert found <= 5 * records


def test_promises_are_kept_through_it(fake):
    stream, arrays = fake.stream(), floats(5)
    deliveries = Deliveries(fake.launcher, "the fake driver")
    promises = deliveries.ask_all([fake.view(array, stream=stream) for array in arrays])
    assert [settle(promise) for promise in promises] == [truth(array) for array in arrays]
    assert deliveries.report()["backend"] == "cuda"


def test_what_was_on_its_way_when_it_closes_is_lost(fake):
    stream, array = fake.stream(), floats(1)[0]
    fake.hold(stream)
    tickets = fake.submit([fake.view(array, stream=stream)])
    fake.close()
    assert only(fake.collect(tickets)[tickets[0]]).lost
    fake.hold(stream, False)


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
