# ruff: noqa: E402  (torch may be missing)
"""What a device copies into host memory without the program waiting is looked at by who reads it first, in both engines.

The double of a device here is torch's "meta" device: an operator of ours takes a tensor of it and answers with host memory, which is
filled later, as a copy to pinned memory is.
"""

import functools
import gc

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]  # building the engine

from opguard_core.engines.collectives import _view
from opguard_core.engines.geometry import Geometries
from opguard_core.engines.storages import Storages
from tests.support.capturing import capturing
from tests.support.native import native_or_skip

FULL, EMPTY = 7.0, 0.0
HOST = torch.zeros(4)
BYTES = HOST.numpy()  # before any capture: written by the double alone


@functools.cache
def operators():
    """Once a process: the library lives as long as the operators that torch has handed out."""
    library = torch.library.Library("opguard_copies", "FRAGMENT")
    library.define("fetch(Tensor x, *, bool non_blocking=False) -> Tensor")
    library.define("into(Tensor(a!) host, Tensor x, bool non_blocking=False) -> ()")
    library.define("send(Tensor x, bool non_blocking=False) -> Tensor")

    def fetch(x, non_blocking=False):
        BYTES[:] = EMPTY if non_blocking else FULL
        return HOST.detach()

    def into(host, x, non_blocking=False):
        BYTES[:] = EMPTY if non_blocking else FULL

    library.impl("fetch", fetch, "CompositeExplicitAutograd")
    library.impl("into", into, "CompositeExplicitAutograd")
    library.impl("send", lambda x, non_blocking=False: torch.ones(x.shape), "CompositeExplicitAutograd")
    return torch.ops.opguard_copies, library


def arrive():
    """The device is done."""
    BYTES[:] = FULL


@pytest.fixture(params=["dispatch", "native"])
def engine(request):
    if request.param == "native":
        native_or_skip()
    return request.param


def fetched(engine, mode, read, *, non_blocking):
    ops, _ = operators()
    with capturing(mode, engine=engine) as seen:
        host = ops.fetch(torch.empty(4, device="meta"), non_blocking=non_blocking)
        arrive()
        read(host)
    return seen, seen.slots(seen.of("fetch"))["out.0"]


@pytest.mark.parametrize("mode", ["verify", "full"])
def test_a_copy_has_the_digests_that_its_first_reader_finds(engine, mode):
    _, at_once = fetched(engine, mode, lambda host: host + 1, non_blocking=False)
    seen, slot = fetched(engine, mode, lambda host: host + 1, non_blocking=True)
    assert (slot.status, slot.mix64) == (at_once.status, at_once.mix64) == ("probed", at_once.mix64)
    assert seen.slots(seen.of("add"))["in.0"].mix64 == slot.mix64


def test_a_copy_that_nobody_reads_is_recorded_by_shape(engine):
    seen, slot = fetched(engine, "full", lambda host: None, non_blocking=True)
    assert (slot.status, slot.mix64) == ("metadata", 0)
    assert seen.coverage["collective_results_never_read"] == 1


def test_a_copy_into_memory_that_is_there_is_found_by_its_reader(engine):
    ops, _ = operators()
    with capturing("full", engine=engine) as seen:
        host = HOST.detach()
        ops.into(host, torch.empty(4, device="meta"), True)
        arrive()
        host + 1
    written, read = seen.slots(seen.of("into"))["mut.0"], seen.slots(seen.of("add"))["in.0"]
    assert written.status == "probed" and written.mix64 == read.mix64


def test_sending_a_copy_back_takes_it_for_complete_no_sooner_than_the_device_does(engine):
    ops, _ = operators()
    with capturing("full", engine=engine) as seen:
        host = ops.fetch(torch.empty(4, device="meta"), non_blocking=True)
        ops.send(host, True)
        arrive()
        host + 1
    sent, read = seen.slots(seen.of("send"))["in.0"], seen.slots(seen.of("add"))["in.0"]
    assert sent.status == "metadata"
    assert seen.slots(seen.of("fetch"))["out.0"].mix64 == read.mix64 != 0


def test_a_record_holds_the_header_of_its_storage_until_nobody_can_ask_any_more(monkeypatch):
    freed = []
    storages = Storages(lambda: 5)
    tensor = torch.ones(4)
    record, geometry = storages.of(tensor, 0), Geometries().of(tensor)
    address = record.address
    assert torch.equal(_view(record, geometry, 0), tensor)
    real = torch.UntypedStorage._free_weak_ref
    monkeypatch.setattr(type(record).__del__, "__defaults__", (lambda one: (freed.append(one), real(one)),))
    del tensor
    gc.collect()
    assert [row.storage for row in storages.poll(1)] == [0]
    assert _view(record, geometry, 0) is None and not freed
    del record
    assert freed == [address]
