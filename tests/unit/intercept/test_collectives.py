"""Device work of collectives belongs to their events: inside the operator's own call on whatever thread makes it, and where a group ends.

A card's NCCL submits its kernel inside the call of the c10d operator; here that operator's CPU kernel is replaced by one that launches.
"""

import sys
from collections import Counter
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from opguard_core.engines.collectives import Collectives  # noqa: E402  after the check above
from opguard_core.engines.coverage import Coverage  # noqa: E402
from opguard_core.engines.patches import Patches  # noqa: E402
from tests.unit.intercept.test_session import PROGRAM, launched  # noqa: E402, F401  a fixture

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preloading works on Linux")
NCCL = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{os.path.abspath('rendezvous')}", rank=0, world_size=1)
library = torch.library.Library("c10d", "IMPL")
def done(tensors):
    future = torch.futures.Future()
    future.set_result(tensors)
    return torch._C._distributed_c10d._create_work_from_future(future).boxed()
def in_place(tensors, *rest):
    launch(50)
    return tensors, done(tensors)
def across(output, given, *rest):
    launch(51)
    output.copy_(given)
    return output, done([output])
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    library.impl("allreduce_", in_place, "CPU")
    library.impl("_allgather_base_", across, "CPU")
    library.impl("_reduce_scatter_base_", across, "CPU")
def steps(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""


def collective_kernels(trace):
    names = {window.event(at).seq: window.event(at).operator for window in trace.iter_windows() for at in range(len(window))}
    found = Counter()
    for row in trace.launches:
        found[names.get(row.seq), row.kernel] += row.count
    return found


@pytest.mark.full
@pytest.mark.timeout(900)  # the observer is built by the first of all tests that need it
@pytest.mark.parametrize("engine", ["dispatch", "native"])
def test_kernels_of_collectives_that_ddp_and_fsdp2_call_belong_to_the_collective(launched, engine):  # noqa: F811
    trace, _, _ = launched(
        """
        steps(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3)))
        whole, part = torch.ones(4), torch.ones(4)
        dist.all_gather_into_tensor(whole, part)      # what FSDP2 calls
        dist.reduce_scatter_tensor(part, whole, async_op=True).wait()
        print(part + whole)
        dist.destroy_process_group()
        """,
        "--engine",
        engine,
        program=PROGRAM + NCCL,
    )
    found = collective_kernels(trace)
    assert {operator for operator, kernel in found if kernel == "kernel_50"} == {"c10d.allreduce_.default"}
    assert found["c10d.allreduce_.default", "kernel_50"] >= 2
    assert {operator for operator, kernel in found if kernel == "kernel_51"} == {
        "c10d._allgather_base_.default",
        "c10d._reduce_scatter_base_.default",
    }
    assert trace.manifest.engines["launches"]["unattributed"] == 0
    assert not any(row.touches for row in trace.launches)


def test_a_group_of_collectives_is_submitted_where_it_ends_and_belongs_to_the_last_one(monkeypatch):
    seen = []

    class Group:
        def _end_coalescing(self, device):
            seen.append(in_flight[-1])
            return device

    in_flight = [99]

    def set_boundary(seq):
        in_flight.append(seq)
        return in_flight[-2]

    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(ProcessGroup=Group))
    collectives, patches = Collectives(None, Coverage(lambda: 0)), Patches()
    collectives.watch_groups(patches)
    group = Group()
    group._end_coalescing("no collective began here")
    collectives.set_boundary = set_boundary
    group._end_coalescing("nor now")
    collectives.began(17)
    assert group._end_coalescing("device") == "device"
    assert (seen, in_flight[-1]) == ([99, 99, 17], 99)
    patches.remove()
    in_flight.append(99)
    group._end_coalescing("unobserved")
    assert seen[-1] == 99
