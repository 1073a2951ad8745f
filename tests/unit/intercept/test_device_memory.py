"""Which addresses lie in memory of the program: certain while the allocator has not grown since it was looked at, taken for true else."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from opguard_core.capture import device_work  # noqa: E402  after the check above


class Storages:
    foreign_on_device = False


@pytest.fixture
def allocator(monkeypatch):
    """A fake one: `held` are its segments, `clock` what the time is."""

    class Allocator:
        held = ((0x1000, 0x100),)
        taken = 1
        clock = 100.0
        looks = 0

        def snapshot(self):
            self.looks += 1
            return [{"address": begin, "total_size": size} for begin, size in self.held]

    fake = Allocator()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", fake.snapshot)
    monkeypatch.setattr(device_work, "_grown", lambda: [(fake.taken, fake.taken)])
    monkeypatch.setattr(device_work.time, "monotonic", lambda: fake.clock)
    return fake


def asked(memory, *addresses):
    return memory.touches(np.array(addresses, np.uint64)).tolist()


def test_an_address_of_somebody_else_is_outside_as_often_as_it_is_asked_for(allocator):
    memory = device_work.DeviceMemory(Storages())
    assert asked(memory, 0x1080, 0x9000) == [True, False]
    assert [asked(memory, 0x9000 + at) for at in range(5)] == [[False]] * 5
    assert allocator.looks == 1


def test_after_the_allocator_has_grown_nothing_is_certain_until_it_is_looked_at_again(allocator):
    memory = device_work.DeviceMemory(Storages())
    asked(memory, 0x9000)
    allocator.taken, allocator.held = 2, ((0x1000, 0x100), (0x9000, 0x10))
    assert asked(memory, 0x9005, 0xA000) == [True, True]
    allocator.clock += device_work.LOOK_S
    assert asked(memory, 0x9005, 0xA000) == [True, False]


def test_an_allocator_that_does_not_count_is_looked_at_now_and_then(allocator, monkeypatch):
    monkeypatch.setattr(device_work, "_grown", lambda: None)
    memory = device_work.DeviceMemory(Storages())
    assert asked(memory, 0x9000) == [False]
    assert asked(memory, 0x9000) == [True]


def test_memory_of_others_that_the_program_shows_as_a_tensor_may_be_anywhere(allocator):
    storages = Storages()
    storages.foreign_on_device = True
    assert asked(device_work.DeviceMemory(storages), 0x9000) == [True]
