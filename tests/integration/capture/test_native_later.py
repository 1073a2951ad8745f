# ruff: noqa: E402  (torch may be missing)
"""The native engine and what it leaves to Python on a device that answers later: results of collectives, tensors taken apart."""

import contextlib
import threading

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # building the engine

from opguard_core.capture.session import start
from opguard_core.plan.config import RunConfig
from tests.support.capturing import left_over, own_gaps
from tests.support.engine_streams import read_tables
from tests.support.late import LateBackend, answering_later
from tests.support.native import native_or_skip

LOOKS, LOOK_S = 2000, 0.01  # until what was asked for has come; a look costs nothing


@pytest.fixture(scope="module", autouse=True)
def group():
    native_or_skip()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def reduced():
    for step in range(4):
        x = torch.full((4,), float(step))
        dist.all_reduce(x)
        x * 2


def sharded():
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    a = distribute_tensor(torch.arange(24.0).view(4, 6), DeviceMesh("cpu", [0]), [Shard(0)])
    for _ in range(4):
        a = a * 2 + 1


def data_parallel():
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def observed(program, folder, backend=None):
    """(slots, events that were still held before the end) of a program under the native engine; without a backend as on any CPU."""
    before = left_over()
    with answering_later(backend) if backend else contextlib.nullcontext():
        session = start(RunConfig(run_dir=folder, user_root=folder.parent, engine="native"))
        try:
            program()
            torch.ones(1)  # the last collective's result is read, or never will be
            outbox = session.context.outbox
            pause = threading.Event()
            for _ in range(LOOKS):
                if outbox.num_on_the_way == 0:
                    break
                pause.wait(LOOK_S)
            left, waited = outbox.num_on_the_way, list(backend.waits) if backend else []
        finally:
            session.stop("exit")
    tables, _ = read_tables(folder / "rank-00000")
    gaps = own_gaps(session.coverage["gaps"], before)
    assert not gaps, gaps
    assert not waited, "nobody waits for a device while the training runs"
    return tables["slots"], left


@pytest.mark.parametrize("program", [reduced, sharded, data_parallel])
def test_what_python_asked_for_comes_while_the_training_runs(program, tmp_path):
    slots, left = observed(program, tmp_path / "late", LateBackend(hold=0))
    assert left == 0, f"{left} events held until the end"
    at_once, _ = observed(program, tmp_path / "at-once")
    for column in ("slot", "status", "mix64", "value64", "bag64", "xor32"):
        assert slots[column] == at_once[column], column


@pytest.mark.parametrize("program", [reduced, data_parallel])
def test_at_the_end_what_is_on_its_way_is_waited_for(program, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.integration.capture.test_native_later.LOOKS", 0)
    slots, left = observed(program, tmp_path / "late", LateBackend(hold=10_000))
    assert left, "a device that holds everything back"
    assert "unreadable" not in slots["status"]
