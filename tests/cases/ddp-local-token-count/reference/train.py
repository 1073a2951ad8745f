import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from model import Tagger

LENGTHS = [((12, 12), (12, 12)), ((9, 6), (8, 7)), ((12, 5), (4, 3)), ((7, 2), (11, 12))]


def batch(rank, step):
    g = torch.Generator().manual_seed(100 * step + rank)
    ids, tags = torch.randint(0, 60, (2, 12), generator=g), torch.randint(0, 7, (2, 12), generator=g)
    for row, n in enumerate(LENGTHS[step][rank]):
        tags[row, n:] = -100
    return ids, tags


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(71)
    model = DDP(Tagger())
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(len(LENGTHS)):
        ids, tags = batch(rank, step)
        tokens = (tags != -100).sum()
        dist.all_reduce(tokens)
        total = F.cross_entropy(model(ids).flatten(0, 1), tags.flatten(), reduction="sum")
        loss = total * world / tokens  # DDP averages over ranks
        opt.zero_grad()
        loss.backward()
        opt.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print(f"step {step} loss {shown.item() / world:.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads let go of Python objects before the interpreter ends


if __name__ == "__main__":
    main()
