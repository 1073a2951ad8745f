"""A program of two gloo ranks; each captures itself and checks what it saw. Not a test module itself."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from opguard_core.probe.tensor import fingerprint
from tests.support.capturing import capturing


def digest(tensor):
    return fingerprint(tensor).mix64


def plain_collectives(rank):
    x = torch.full((4,), float(rank + 1))
    before = digest(x)
    with capturing() as seen:
        dist.all_reduce(x)
        y = x * 2
        gathered = [torch.empty(4) for _ in range(2)]
        dist.all_gather(gathered, y)
        torch.stack(gathered)
        dist.broadcast(x, src=1)
        x + 1
    reduced = seen.of("allreduce_")
    slots = seen.slots(reduced)
    assert list(slots) == ["in.0.0", "mut.0.0"], list(slots)
    assert slots["in.0.0"].mix64 == before
    assert slots["mut.0.0"].status == "probed"
    assert slots["mut.0.0"].mix64 == seen.slots(seen.of("mul"))["in.0"].mix64 == digest(torch.full((4,), 3.0))
    assert "reduce_op=SUM" in reduced.args and "ProcessGroup(size=2)" in reduced.args, reduced.args
    gather = seen.slots(seen.of("allgather_"))
    assert [gather[f"mut.0.0.{n}"].mix64 for n in (0, 1)] == [digest(t) for t in gathered]
    assert {gather[f"in.0.0.{n}"].status for n in (0, 1)} == {"metadata"}
    assert seen.slots(seen.of("broadcast_"))["mut.0.0"].status == "probed"
    clocks = [event.collective_clock for event in seen.events if event.kind == "collective"]
    assert clocks == [0, 1, 2], clocks
    assert {event.phase for event in seen.events if event.kind == "collective"} == {"collective"}


def views_of_one_buffer(rank):
    flat = torch.zeros(8)
    with capturing() as seen:
        dist.all_gather(list(flat.view(2, 4).unbind()), torch.full((4,), float(rank + 1)))
        flat * 2
    slots = seen.slots(seen.of("allgather_"), "mut")
    assert [slot.mix64 for slot in slots.values()] == [digest(torch.full((4,), v)) for v in (1.0, 2.0)]


def asynchronous(rank):
    x, z = torch.full((4,), float(rank)), torch.ones(4)
    with capturing("full") as seen:
        work = dist.all_reduce(x, async_op=True)
        z + 1
        work.wait()
        x * 2
    assert [event.operator.split(".")[1] for event in seen.events] == ["allreduce_", "add", "mul"]
    assert seen.slots(seen.of("allreduce_"))["mut.0.0"].mix64 == digest(torch.full((4,), 1.0))
    assert seen.slots(seen.of("mul"))["in.0"].status == "probed", "what a collective wrote is never carried"


def never_read(rank):
    with capturing() as seen:
        dist.all_reduce(torch.ones(2))
    assert seen.slots(seen.of("allreduce_"))["mut.0.0"].status == "metadata"
    assert seen.coverage["collective_results_never_read"] == 1


def functional(rank):
    from torch.distributed._functional_collectives import all_reduce

    x = torch.full((4,), float(rank + 1))
    with capturing() as seen:
        y = all_reduce(x, "sum", dist.group.WORLD) * 2
    assert torch.equal(y, torch.full((4,), 6.0))
    assert seen.slots(seen.of("_c10d_functional.all_reduce.default"))["out.0"].mix64 == digest(torch.full((4,), 3.0))


def data_parallel(rank):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 4), gradient_as_bucket_view=rank >= 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with capturing() as seen:
        for _ in range(2):
            model(torch.full((2, 4), float(rank + 1))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    reduces = [event for event in seen.events if event.operator == "c10d.allreduce_.default"]
    assert [event.window for event in reduces] == [0, 1]
    for event in reduces:
        slots = seen.slots(event)
        assert slots["in.0.0"].status == slots["mut.0.0"].status == "probed", slots
    assert {"param:weight", "param:bias"} <= set(seen.slots(seen.states[0]))
    both = [None, None]
    dist.all_gather_object(both, [seen.slots(event)["mut.0.0"].mix64 for event in reduces])
    assert both[0] == both[1], "ranks agree on what was reduced"


def communication_hook(rank):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model.register_comm_hook(None, fp16_compress_hook)
    with capturing() as seen:
        model(torch.full((2, 4), float(rank + 1))).sum().backward()
        model.module.weight.grad + 1
    reduced = seen.slots(seen.of("allreduce_"))["mut.0.0"]
    assert (reduced.status, reduced.dtype) == ("probed", "float16")
    restored = [event for event in seen.events if "copy_" in event.operator and seen.slots(event)["in.1"].storage == reduced.storage]
    assert restored, "the hook's callback is observed, whichever thread ran it"
    assert not seen.coverage["gaps"], seen.coverage


def distributed_tensors(rank):
    mesh = DeviceMesh("cpu", [0, 1])
    torch.manual_seed(0)
    with capturing() as seen:
        a = distribute_tensor(torch.randn(4, 6), mesh, [Shard(0)])
        b = distribute_tensor(torch.randn(6, 2), mesh, [Replicate()])
        local = a.to_local()
        c = a @ b
        c.redistribute(mesh, [Replicate()]).to_local() + 1
    product = seen.of("mm")
    assert seen.slots(product)["in.0"].mix64 == digest(local)
    assert seen.slots(product)["in.0"].shape == "2,6"
    assert any(event.kind == "collective" for event in seen.events)
    assert not seen.coverage["gaps"], seen.coverage


def sharded_training(rank):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    fully_shard(net, mesh=DeviceMesh("cpu", [0, 1]))
    optimizer = torch.optim.AdamW(net.parameters())
    with capturing() as seen:
        for _ in range(2):
            net(torch.full((2, 4), float(rank + 1))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    names = set(seen.slots(seen.states[0]))
    assert any(name.startswith("param:0.weight") for name in names), names
    assert [event.window for event in seen.states] == [0, 1, 2]
    assert not seen.coverage["gaps"], seen.coverage


CHECKS = {
    check.__name__: check
    for check in (
        plain_collectives,
        views_of_one_buffer,
        asynchronous,
        never_read,
        functional,
        data_parallel,
        communication_hook,
        distributed_tensors,
        sharded_training,
    )
}


def main():
    rank, store, names = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for name in names or CHECKS:
        CHECKS[name](rank)
        dist.barrier()
        print("ok", name, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
