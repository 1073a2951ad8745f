# ruff: noqa: E402  (torch may be missing)
"""Sums of a state are those that a fresh look at every tensor gives, whatever became of the tensors since the last time."""

import contextlib
import gc
import math
import threading
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from opguard_core.engines.quiet import quiet
from opguard_core.fingerprint import cpu
from opguard_core.fingerprint.constants import MASK64, finish, mix_lane
from opguard_core.fingerprint.digest import Digests
from opguard_core.probe import alike, backends, sums
from opguard_core.probe import tensor as tensor_module
from opguard_core.probe.asking import Layout
from opguard_core.probe.kinds import Unreadable
from opguard_core.probe.promise import settle
from opguard_core.probe.tensor import fingerprint
from tests.support.fake_cuda import FakeCuda
from tests.support.late import LateBackend, answering_later


class Launching:
    """The launch path on the fake driver, for host tensors."""

    name = "cuda"

    def __init__(self, fake):
        self.fake, self.stream = fake, fake.stream()
        self.calls = []

    def submit(self, views):
        self.calls.append(len(views))
        there = views.moved(0, self.stream) if hasattr(views, "moved") else [view._replace(device=0, stream=self.stream) for view in views]
        tickets = self.fake.launcher.submit(there)
        self.fake.finish(self.stream)
        return tickets

    def take(self):
        return self.fake.launcher.take()

    def wait(self, ticket, timeout_s):
        self.fake.launcher.wait(ticket, timeout_s)

    def report(self):
        return self.fake.launcher.report()


@pytest.fixture(params=["at once", "late", "launched", "launched from python"])
def device(request, tmp_path):
    """Who digests host tensors; None: they are digested at once."""
    if request.param == "at once":
        yield None
    elif request.param == "late":
        with answering_later(LateBackend(10)) as backend:
            yield backend
    else:
        fake = FakeCuda(tmp_path, ring_records=4096, python="python" in request.param)
        with answering_later(Launching(fake)) as backend:
            yield backend
        fake.close()


def one_by_one(values, names):
    """By name what a fresh look at each value finds, in plain Python, with the order and the reasons of what cannot be read."""
    found, unreadable = {}, []
    for value, name in zip(values, names, strict=True):
        if not isinstance(value, torch.Tensor):
            value = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
        if value.is_meta:
            continue
        known = fingerprint(value)
        if isinstance(known, Unreadable):
            unreadable.append(known)
            continue
        part = settle(known)
        number, elements, dtypes, parts = found.setdefault(name, (0, 0, set(), []))
        parts.append(part)
        found[name] = number + 1, elements + value.numel(), dtypes | {str(value.dtype).removeprefix("torch.")}, parts
    return {name: (number, elements, dtypes, summed(parts)) for name, (number, elements, dtypes, parts) in found.items()}, unreadable


def summed(parts):
    mixed = [sum(mix_lane(part[column]) for part in parts) & MASK64 for column in range(3)]
    xor32 = 0
    for part in parts:
        xor32 ^= part.xor32
    return Digests(*(finish(total, len(parts)) for total in mixed), xor32, False, sum(part.nbytes for part in parts))


def read(reader, values, names):
    found = reader.read(values, names)
    groups = {
        name: (group.sum.number, group.elements, group.dtypes, group.sum.known(lambda part: part)) for name, group in found.groups.items()
    }
    return {name: (*facts, settle(known)) for name, (*facts, known) in groups.items()}, found.unreadable


def agree(reader, values, names):
    """Read and compare with a fresh look; the digests by name."""
    with quiet():
        expected = one_by_one(values, names)
        found = read(reader, values, names)
    assert found == expected and list(found[0]) == list(expected[0])
    return {name: facts[-1] for name, facts in found[0].items()}


class State:
    """What a training has: parameters, gradients, optimizer state and buffers, in that order."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 4), (4,), (2, 3, 2), (5, 5))]
        self.numbers = [1, 0.5]
        for parameter in self.parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        self.moments = [torch.randn(parameter.shape, generator=generator) for parameter in self.parameters]
        self.buffers = [torch.randn(7, generator=generator), torch.arange(6).view(2, 3).t()]

    def values(self):
        """(values, names)."""
        found = []
        for parameter in self.parameters:
            found.append((parameter, "param"))
            if parameter.grad is not None:
                found.append((parameter.grad, "grad"))
        found += [(value, "optim") for value in (*self.numbers, *self.moments)]
        found += [(value, "buffer") for value in self.buffers]
        return [value for value, _ in found], [name for _, name in found]


def unreadable_subclass():
    class Hidden(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError

    return torch.Tensor._make_wrapper_subclass(Hidden, (2, 3))


def set_data(tensor, data):
    tensor.data = data


CHANGES = {
    "nothing": (lambda state: None, ()),
    "a value": (lambda state: state.parameters[0].data.view(-1)[3:4].add_(1e-3), ("param",)),
    "an integer": (lambda state: state.buffers[1].add_(1), ("buffer",)),
    "a parameter more": (lambda state: state.parameters.append(torch.nn.Parameter(torch.ones(3))), ("param",)),
    "a parameter less": (lambda state: state.parameters.pop(), ("param", "grad")),
    "two change places": (lambda state: state.parameters.reverse(), ()),
    "other data": (lambda state: set_data(state.parameters[1], torch.ones(4)), ("param",)),
    "data of another shape": (lambda state: set_data(state.parameters[0], state.parameters[0].data[:2]), ("param",)),
    "data of other strides": (lambda state: set_data(state.parameters[3], state.parameters[3].data.t()), ("param",)),
    "data of another type in place": (lambda state: set_data(state.moments[0], state.moments[0].view(torch.int32)), ("optim",)),
    "data of half the size": (lambda state: set_data(state.buffers[0], state.buffers[0].half()), ("buffer",)),
    "data further on in its storage": (lambda state: set_data(state.buffers[0], torch.arange(14.0)[7:]), ("buffer",)),
    "negative data": (lambda state: set_data(state.buffers[0], torch._neg_view(state.buffers[0])), ("buffer",)),
    "complex conjugate data": (
        lambda state: set_data(state.buffers[0], torch.complex(torch.ones(3), torch.ones(3)).conj()),
        ("buffer",),
    ),
    "storage set": (lambda state: state.moments[1].set_(torch.full((4,), 5.0)), ("optim",)),
    "transposed in place": (lambda state: state.moments[3].t_(), ("optim",)),
    "enlarged": (lambda state: state.moments[1].resize_(2), ("optim",)),
    "frozen": (lambda state: state.parameters[2].requires_grad_(False), ()),
    "no gradient": (lambda state: setattr(state.parameters[2], "grad", None), ("grad",)),
    "no gradients at all": (lambda state: [setattr(parameter, "grad", None) for parameter in state.parameters], ("grad",)),
    "new gradients": (lambda state: [setattr(p, "grad", torch.full_like(p, 2)) for p in state.parameters], ("grad",)),
    "gradients of another layout": (lambda state: setattr(state.parameters[3], "grad", torch.arange(25.0).view(5, 5).t()), ("grad",)),
    "a sparse gradient": (lambda state: setattr(state.parameters[3], "grad", torch.eye(5).to_sparse()), ("grad",)),
    "tied parameters": (lambda state: state.parameters.append(state.parameters[0]), ("param", "grad")),
    "one moment for all": (lambda state: state.moments.__setitem__(slice(None), [state.moments[0]] * 4), ("optim",)),
    "a step": (lambda state: state.numbers.__setitem__(0, 2), ("optim",)),
    "another float": (lambda state: state.numbers.__setitem__(1, -0.5), ("optim",)),
    "a number becomes a float": (lambda state: state.numbers.__setitem__(0, 1.0), ("optim",)),
    "a number becomes a bool": (lambda state: state.numbers.__setitem__(0, True), ()),
    "a number becomes a tensor": (lambda state: state.numbers.__setitem__(0, torch.tensor(9.0)), ("optim",)),
    "a tensor becomes a number": (lambda state: state.moments.__setitem__(2, 5), ("optim",)),
    "no numbers": (lambda state: state.numbers.clear(), ("optim",)),
    "no state yet": (lambda state: (state.numbers.clear(), state.moments.clear()), ("optim",)),
    "an empty tensor": (lambda state: state.buffers.append(torch.empty(0, 3)), ("buffer",)),
    "a meta tensor": (lambda state: state.buffers.insert(0, torch.ones(2, device="meta")), ()),
    "only meta tensors": (lambda state: state.buffers.__setitem__(slice(None), [torch.ones(2, device="meta")]), ("buffer",)),
    "an unreadable one": (lambda state: state.parameters.insert(0, unreadable_subclass()), ()),
    "a quantised one": (lambda state: state.buffers.append(torch.quantize_per_tensor(torch.ones(3), 0.1, 3, torch.quint8)), ("buffer",)),
    "a subclass with memory": (
        lambda state: state.buffers.append(torch.ones(3).as_subclass(type("Named", (torch.Tensor,), {}))),
        ("buffer",),
    ),
    "its storage is freed": (lambda state: state.moments[0].untyped_storage().resize_(0), ("optim",)),
    "its storage is too small": (lambda state: state.moments[0].untyped_storage().resize_(8), ("optim",)),
    "contents exchanged": (lambda state: torch.utils.swap_tensors(state.moments[0], state.moments[3]), ()),
}


@pytest.mark.filterwarnings("ignore:.*quantiz")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_reads_is_seen_and_the_sums_are_those_of_a_fresh_look(device, change):
    state, reader = State(), sums.Sums()
    act, touched = CHANGES[change]
    for _ in range(2):
        before = agree(reader, *state.values())
    with torch.no_grad():
        act(state)
    for _ in range(2):
        after = agree(reader, *state.values())
    assert {name for name in {**before, **after} if before.get(name) != after.get(name)} == set(touched)


def dtensor(local):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(local, init_device_mesh("cpu", (2,)), [Shard(0)], run_check=False)


@pytest.fixture
def process_group():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
        yield
        torch.distributed.destroy_process_group()


def test_shards_count_as_what_they_are_part_of_and_are_read_together(device, process_group, counted):
    values = [torch.nn.Parameter(dtensor(torch.randn(3, 4))), dtensor(torch.randn(2, 2)), torch.randn(3)]
    names, reader = ["param", "grad", "param"], sums.Sums()
    for _ in range(2):
        agree(reader, values, names)
    counted.clear()
    with quiet():
        reader.read(values, names)
    assert counted == {}, "nothing is found out anew, and no tensor is read by itself"
    values[1] = dtensor(values[1]._local_tensor.clone().resize_(4, 1))  # the same memory size, another whole
    first = agree(reader, values, names)
    values[2] = dtensor(values[2])  # plain before, a shard of twice as much now
    assert agree(reader, values, names) == first
    values[0]._local_tensor.add_(1)
    assert agree(reader, values, names)["param"] != first["param"]


@pytest.fixture
def counted(monkeypatch):
    """How often facts were found out anew, and tensors were read by themselves."""
    seen = {}

    def counting(name):
        original = getattr(sums, name)

        def call(*args):
            seen[name] = seen.get(name, 0) + 1
            return original(*args)

        monkeypatch.setattr(sums, name, call)

    for name in ("_Known", "_plain", "fingerprint"):
        counting(name)
    return seen


def test_a_step_with_new_gradients_costs_one_call_of_the_device_and_nothing_for_each_tensor(device, counted):
    state, reader = State(), sums.Sums()
    state.numbers.clear()
    with quiet():
        reader.read(*state.values())
    tensors = len(state.values()[0])
    assert counted == {"_Known": 1, "_plain": tensors}
    for _ in range(3):
        for parameter in state.parameters:
            parameter.grad = torch.ones_like(parameter)
        with quiet():
            reader.read(*state.values())
    assert counted == {"_Known": 1, "_plain": tensors}
    if device is not None:
        calls = device.launches if isinstance(device, LateBackend) else device.calls
        assert calls == [tensors] * 4


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (7,)])
def test_a_tensor_that_took_the_place_of_one_that_was_there_twice_counts(device, shape):
    tied, reader = torch.randn(2, 3), sums.Sums()
    names = ["param", "grad", "param"]
    for _ in range(2):
        before = agree(reader, [tied, torch.ones(4), tied], names)
    assert agree(reader, [tied, torch.ones(4), torch.randn(shape)], names)["param"] != before["param"]
    assert agree(reader, [tied, torch.ones(4), tied], names) == before


def test_more_tensors_than_are_asked_for_at_once(device, monkeypatch):
    monkeypatch.setattr(sums, "MOST_AT_ONCE", 5)
    reader, state = sums.Sums(), State()
    for _ in range(3):
        agree(reader, *state.values())


def test_where_torch_has_no_check_that_can_be_trusted_everything_is_found_out_each_time(device, monkeypatch, counted):
    monkeypatch.setattr(sums, "alike", lambda tensors: None)
    reader, state = sums.Sums(), State()
    for step in range(3):
        agree(reader, *state.values())
        assert counted["_Known"] == step + 1


def test_who_digests_may_change():
    reader, state = sums.Sums(), State()
    at_once = agree(reader, *state.values())
    with answering_later() as backend:
        with quiet():
            reader.read(*state.values())
        assert backend.launches == [len(state.values()[0]) - len(state.numbers)]
        assert agree(reader, *state.values()) == at_once
    assert agree(reader, *state.values()) == at_once


def test_tensors_of_which_some_answer_at_once_are_summed_up_together(monkeypatch):
    def plan_of(tensor):
        known, make = (tensor_module._readers, cpu.Reader) if tensor.numel() % 2 else (tensor_module._layouts, Layout)
        return tensor_module._kept(known, make, tensor)

    monkeypatch.setattr(sums, "plan_of", plan_of)
    reader, state = sums.Sums(), State()
    with answering_later(LateBackend(3)) as backend:
        for _ in range(2):
            backend.launches.clear()
            with quiet():
                reader.read(*state.values())
            even = sum(not value.numel() % 2 for value in state.values()[0] if isinstance(value, torch.Tensor))
            assert backend.launches == [even], "the others were read at once"
            agree(reader, *state.values())


def test_no_tensor_is_kept_alive(device):
    reader, state = sums.Sums(), State()
    agree(reader, *state.values())
    backends.collect()
    watched = [weakref.ref(value) for value in state.values()[0] if isinstance(value, torch.Tensor)]
    storages = [torch._C._storage_address(value) for value in state.moments]
    assert storages
    del state
    gc.collect()
    assert [reference for reference in watched if reference() is not None] == []


@pytest.mark.skipif(not hasattr(torch, "_lazy_clone"), reason="this torch copies at once")
def test_reading_does_not_end_a_copy_on_write_sharing():
    original, reader = torch.randn(4), sums.Sums()
    copy = torch._lazy_clone(original)
    for _ in range(3):
        agree(reader, [original, copy], ["param", "buffer"])
        assert torch._C._is_cow_tensor(copy) and torch._C._is_cow_tensor(original)


def test_two_threads_may_read_with_one_reader():
    reader, failures = sums.Sums(), []
    states = [State(), State()]
    states[1].parameters.pop()

    def run(state):
        try:
            for _ in range(50):
                agree(reader, *state.values())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(state,)) for state in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_torchs_check_is_trusted_only_while_it_tells_apart_what_must_be_told_apart(monkeypatch):
    alike._is_trusted.cache_clear()
    with contextlib.ExitStack() as stack:
        stack.callback(alike._is_trusted.cache_clear)
        for answer in (True, False):
            monkeypatch.setattr(alike, "_check", lambda tensors, answer=answer: lambda *others: answer)
            alike._is_trusted.cache_clear()
            assert alike.alike([torch.ones(2)]) is None
        monkeypatch.setattr(alike, "_check", lambda tensors: {}["gone"] if False else torch._C.no_such_thing)
        alike._is_trusted.cache_clear()
        assert alike.alike([torch.ones(2)]) is None


def test_what_a_lost_ticket_hides_is_said_of_the_first():
    reader, state = sums.Sums(), State()
    with quiet(), answering_later(LateBackend(0, loses=lambda ticket: ticket in (2, 4))):
        found = reader.read(*state.values())
        known = {name: group.sum.known(lambda part: part) for name, group in found.groups.items()}
        assert isinstance(settle(known["grad"]), Unreadable)
        assert {name for name, one in known.items() if isinstance(settle(one), Digests)} == {"param", "optim", "buffer"}


def test_numbers_that_do_not_compare():
    reader = sums.Sums()
    for values in ([0.0, -0.0], [-0.0, 0.0, 0], [math.nan, math.inf], [2**63 - 1, -(2**63), True]):
        agree(reader, values, ["optim"] * len(values))
    assert agree(reader, [0.0], ["optim"]) != agree(reader, [-0.0], ["optim"])
