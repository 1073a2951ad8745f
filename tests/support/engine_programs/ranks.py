"""Programs of two gloo ranks; each rank runs all of them under both engines and says what differs. Run as a module.

    python -m tests.support.engine_programs.ranks RANK STORE FOLDER [NAME ...]

Prints one JSON object: for each program the differences of the two engines under an inert mode (`strict`), as they are used
(`used`), and of an observed from a bare run (`changed`).
"""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.support.engine_programs.catalogue import Program
from tests.support.engine_streams import INERT, differences, outcome


def rank_number():
    return float(dist.get_rank() + 1)


def collectives():
    x = torch.full((4,), rank_number())
    dist.all_reduce(x)
    y = x * 2
    gathered = [torch.empty(4) for _ in range(2)]
    dist.all_gather(gathered, y)
    dist.broadcast(x, src=1)
    work = dist.all_reduce(y, async_op=True)
    z = torch.ones(4) + 1
    work.wait()
    dist.all_reduce(torch.ones(2))
    return torch.stack(gathered) + 1, x + 1, y + z


def functional():
    from torch.distributed._functional_collectives import all_gather_tensor, all_reduce, reduce_scatter_tensor

    x = torch.full((4,), rank_number())
    return all_reduce(x, "sum", dist.group.WORLD) * 2, all_gather_tensor(x, 0, dist.group.WORLD) + 1, reduce_scatter_tensor(
        torch.ones(4), "sum", 0, dist.group.WORLD
    ) * 3  # fmt: skip


def trained(net):
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(2):
        loss = net(torch.full((2, 4), rank_number())).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


def data_parallel():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return trained(DistributedDataParallel(net, gradient_as_bucket_view=True))


def data_parallel_accumulating():
    net = DistributedDataParallel(nn.Linear(4, 4), bucket_cap_mb=0.00001)
    with net.no_sync():
        net(torch.ones(2, 4)).sum().backward()
    return trained(net)


def communication_hook():
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    net = DistributedDataParallel(nn.Linear(4, 4))
    net.register_comm_hook(None, fp16_compress_hook)
    return trained(net)


def distributed_tensors():
    mesh = DeviceMesh("cpu", [0, 1])
    a = distribute_tensor(torch.randn(4, 6), mesh, [Shard(0)])
    b = distribute_tensor(torch.randn(6, 2), mesh, [Replicate()])
    c = a @ b
    return a.to_local() + 1, c.redistribute(mesh, [Replicate()]).to_local() + 1


def sharded_training():
    from torch.distributed.fsdp import fully_shard

    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    fully_shard(net, mesh=DeviceMesh("cpu", [0, 1]))
    return trained(net)


RUNS = {
    run.__name__: run
    for run in (
        collectives,
        functional,
        data_parallel,
        data_parallel_accumulating,
        communication_hook,
        distributed_tensors,
        sharded_training,
    )
}
OVERLAPPING = frozenset({"communication_hook"})  # the hook's callback may run on a thread that C++ started


def without_race(name: str, lines: list[str]) -> list[str]:
    """The hook's callback runs where it is added if the reduction is over by then, else on the thread that ends it: either is right."""
    moved = [line for line in lines if name == "communication_hook" and "aten.copy_.default" in line and "'float16'" in line]
    signs = [line.split(" (", 1)[0].split()[-1][0] for line in moved]
    return [line for line in lines if line not in moved] if signs.count("+") == signs.count("-") else lines


def compared(name: str, folder: Path) -> dict[str, list[str]]:
    """Differences of one program's runs on this rank."""
    program = Program(name, RUNS[name], overlaps=name in OVERLAPPING)
    ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    runs = []
    for number, engine in enumerate((None, None, "dispatch", "dispatch" + INERT, "native" + INERT, "native")):
        runs.append(outcome(program, engine, folder / name / str(number), "verify", **ranks))
        dist.barrier()
    _, bare, dispatch, one, other, used = runs
    return {
        "strict": without_race(name, differences(one, other, overlaps=program.overlaps, limit=1000)),
        "used": without_race(name, differences(dispatch, used, overlaps=program.overlaps, in_place=True, limit=1000)),
        "changed": [f"{bare.result} became {used.result}"] if (bare.result, bare.random) != (used.result, used.random) else [],
        "engines": [*dispatch.manifest["engines"], *other.manifest["engines"], *used.manifest["engines"]],
    }


def main() -> None:
    rank, store, folder, names = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:]
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    print(json.dumps({name: compared(name, folder / f"of-{rank}") for name in names or RUNS}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
