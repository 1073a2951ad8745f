"""Tensors that are asked for by columns: one call in, arrays out, and the same digests, losses and counts as one by one."""

from __future__ import annotations

import numpy as np
import pytest

from opguard_core.fingerprint import cpu
from opguard_core.fingerprint.dtypes import ELEMENT_TYPES
from opguard_core.probe import cuda_forms
from opguard_core.probe.asking import Arrived, Layout, Layouts, Record, Views
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import LOST, Deliveries
from tests.support.fake_cuda import FakeCuda
from tests.support.twins import strides_of

pytestmark = pytest.mark.torch


@pytest.fixture(params=["compiled", "python"])
def make(request, tmp_path):
    made = []

    def build(**how):
        made.append(FakeCuda(tmp_path, python=request.param == "python", **how))
        return made[-1]

    yield build
    for one in made:
        one.close()


def floats(number, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((3, 5 + k), dtype=np.float32)[:, ::2] for k in range(number)]


def truth(array):
    return cpu.fingerprint(array.ctypes.data, "float32", array.shape, strides_of(array))


def layouts_of(arrays):
    return Layouts([Layout(ELEMENT_TYPES["float32"], array.shape, strides_of(array)) for array in arrays])


def views_of(arrays, stream, layouts=None):
    return Views(arrays, layouts or layouts_of(arrays), [array.ctypes.data for array in arrays], 0, stream)


def settled(deliveries, gathered):
    while gathered.missing:
        gathered.wait(10.0)
        deliveries.collect()
    return gathered


def rows(arrays):
    return [list(truth(array)[:4]) for array in arrays]


@pytest.mark.parametrize("number", [1, 8, 64, 65, 300])
def test_what_is_gathered_is_what_the_cpu_twin_finds_time_after_time(make, number):
    fake = make()
    deliveries, stream = Deliveries(fake.launcher), fake.stream()
    layouts = layouts_of(floats(number))
    for seed in range(3):
        arrays = floats(number, seed)
        gathered = deliveries.ask_together(views_of(arrays, stream, layouts))
        assert deliveries.num_outstanding <= number
        assert settled(deliveries, gathered).words.tolist() == rows(arrays) and not gathered.lost
    assert (deliveries.num_asked, deliveries.num_delivered, deliveries.num_lost, deliveries.num_outstanding) == (
        3 * number,
        3 * number,
        0,
        0,
    )
    assert not fake.launcher._ranges and not fake.launcher._nbytes and not fake.launcher._early


def test_others_in_between_come_one_by_one(make):
    fake = make()
    deliveries, stream, arrays = Deliveries(fake.launcher), fake.stream(), floats(40)
    promises, gathered = [], []
    for start in range(0, 40, 10):
        promises.append(deliveries.ask(fake.view(arrays[start], stream=stream)))
        gathered.append(deliveries.ask_together(views_of(arrays[start : start + 10], stream)))
    for start, promise, some in zip(range(0, 40, 10), promises, gathered, strict=True):
        assert settled(deliveries, some).words.tolist() == rows(arrays[start : start + 10])
        assert promise.look() == truth(arrays[start])


def test_records_that_come_before_their_range_is_known_are_kept(make):
    fake = make()
    stream, arrays = fake.stream(), floats(12)

    class Hasty:
        """Everything has come by the time `submit` comes back."""

        name, wait, take = "hasty", fake.launcher.wait, fake.launcher.take

        def submit(self, views):
            tickets = fake.launcher.submit(views)
            fake.launcher.wait(tickets[-1], 10.0)
            while deliveries.num_delivered < len(views):
                deliveries.collect()
            return tickets

    deliveries = Deliveries(Hasty())
    gathered = deliveries.ask_together(views_of(arrays, stream))
    assert gathered.words.tolist() == rows(arrays) and not gathered.missing
    assert deliveries.num_outstanding == 0 and not deliveries._early_ranges


def test_records_that_come_before_the_launcher_knows_their_range_are_kept(make):
    fake = make()
    stream, arrays, taken = fake.stream(), floats(12), []
    submit = fake.launcher._submit_views

    def slow(*arguments):
        first = submit(*arguments)
        fake.launcher.wait(first + 11, 10.0)
        taken.extend(fake.launcher.take())
        return first

    fake.launcher._submit_views = slow
    deliveries = Deliveries(fake.launcher)
    gathered = deliveries.ask_together(views_of(arrays, stream))
    assert taken == [] and settled(deliveries, gathered).words.tolist() == rows(arrays)


def test_another_reader_of_the_queue_hands_on_what_is_not_its_own(make):
    fake = make()
    stream, arrays = fake.stream(), floats(12)
    fake.launcher.read_from(lambda most: np.frombuffer(fake.module.take(most), dtype=cuda_forms.RECORD).tolist())
    deliveries = Deliveries(fake.launcher)
    assert deliveries.collect() == 0
    promise, gathered = deliveries.ask(fake.view(arrays[0], stream=stream)), deliveries.ask_together(views_of(arrays, stream))
    assert settled(deliveries, gathered).words.tolist() == rows(arrays)
    assert promise.look() == truth(arrays[0])


def test_a_full_ring_loses_by_name(make):
    fake = make(ring_records=64)
    deliveries, stream, arrays = Deliveries(fake.launcher), fake.stream(), floats(70)
    gathered = settled(deliveries, deliveries.ask_together(views_of(arrays, stream)))
    assert gathered.lost == dict.fromkeys(range(70), Unreadable(LOST))
    assert deliveries.num_lost == 70
    gathered = settled(deliveries, deliveries.ask_together(views_of(arrays[:60], stream)))
    assert gathered.words.tolist() == rows(arrays[:60]) and not gathered.lost


def test_a_device_that_cannot_be_opened_refuses_each(make):
    fake = make()
    fake.launcher._kernels = lambda device, flags: Unreadable("no kernels here")
    deliveries = Deliveries(fake.launcher)
    gathered = deliveries.ask_together(views_of(floats(3), fake.stream()))
    assert gathered.lost == dict.fromkeys(range(3), Unreadable("no kernels here")) and not gathered.missing
    assert (deliveries.num_asked, deliveries.num_lost) == (0, 0)


def test_a_stream_that_may_not_be_launched_on_refuses_all(make):
    fake, arrays = make(), floats(3)
    fake.launcher.open_device(0)
    fake.capture(fake.stream())
    gathered = Deliveries(fake.launcher).ask_together(views_of(arrays, 0))
    assert list(gathered.lost) == [0, 1, 2]


def test_what_has_too_many_dimensions_leaves_the_others_readable(make):
    fake = make()
    array = np.zeros(4, dtype=np.float32)
    many = Layout(ELEMENT_TYPES["float32"], (2,) * (cuda_forms.MAX_DIMS + 1), tuple(3 ** (k + 1) for k in range(cuda_forms.MAX_DIMS + 1)))
    plain = Layout(ELEMENT_TYPES["float32"], (4,), (1,))
    views = Views([array] * 2, Layouts([many, plain]), [array.ctypes.data] * 2, 0, fake.stream())
    deliveries = Deliveries(fake.launcher)
    gathered = settled(deliveries, deliveries.ask_together(views))
    assert list(gathered.lost) == [0] and gathered.words[1].tolist() == list(truth(array)[:4])


def test_of_a_captured_launch_the_first_replay_counts(make):
    fake = make()
    stream, arrays = fake.stream(), floats(5)
    fake.launcher.open_device(0)
    deliveries = Deliveries(fake.launcher)
    fake.capture(stream)
    gathered = deliveries.ask_together(views_of(arrays, stream))
    graph = fake.end_capture(stream)
    first = rows(arrays)
    fake.replay(graph, stream)
    while gathered.missing:
        deliveries.collect()
    for array in arrays:
        array += 1
    fake.replay(graph, stream)
    fake.finish(stream)
    for _ in range(3):
        fake.finish_copies()
        deliveries.collect()
    assert gathered.words.tolist() == first and not gathered.lost
    assert not fake.launcher._early and not deliveries._early_ranges
    assert not fake.launcher._ranges and not deliveries.num_outstanding, "all that was asked for has come"


def test_what_was_given_up_stays_so_and_is_outstanding_until_it_comes(make):
    fake = make()
    deliveries, stream, arrays = Deliveries(fake.launcher), fake.stream(), floats(6)
    gathered = deliveries.ask_together(views_of(arrays, stream))
    gathered.lose("nobody waits")
    assert (gathered.missing, deliveries.num_outstanding) == (0, 6)
    fake.launcher.wait(gathered.tickets[-1], 10.0)
    while deliveries.num_outstanding:
        deliveries.collect()
    assert gathered.lost == dict.fromkeys(range(6), Unreadable("nobody waits"))
    assert gathered.words.tolist() == [[0] * 4] * 6


def test_views_read_as_the_views_they_stand_for(make):
    arrays = floats(3)
    views = views_of(arrays, 7)
    assert [(view.tensor is array, view.address, view.stream) for view, array in zip(views, arrays, strict=True)] == [
        (True, array.ctypes.data, 7) for array in arrays
    ]
    assert views[1:] == list(views)[1:] and views[-1] == list(views)[-1]
    assert [type(view.address) for view in Views(arrays, views.layouts, np.array(views.addresses, np.uint64), 0, 7)] == [int] * 3


def test_arrivals_of_several_ranges_in_one_take_are_told_apart(make):
    fake = make()
    stream, arrays = fake.stream(), floats(30)
    asked = [fake.launcher.submit(views_of(arrays[start : start + 10], stream)) for start in range(0, 30, 10)]
    (lone,) = fake.launcher.submit([fake.view(arrays[0], stream=stream)])
    fake.launcher.wait(lone, 10.0)
    found: list[Arrived | Record] = []
    while sum(len(one.places) for one in found if isinstance(one, Arrived)) < 30 or not any(isinstance(one, Record) for one in found):
        found += fake.launcher.take()
    for start, tickets in zip(range(0, 30, 10), asked, strict=True):
        words = {}
        for one in found:
            if isinstance(one, Arrived) and one.first == tickets.start:
                words.update(zip(one.places.tolist(), one.words.tolist(), strict=True))
        assert [words[place] for place in range(10)] == rows(arrays[start : start + 10])
    assert [one.ticket for one in found if isinstance(one, Record)] == [lone]
