import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from model import WordModel


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(371)
    net = WordModel()
    opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(372 + rank)
    for step in range(4):
        words = torch.randint(0, 50, (16, 5), generator=g)
        loss = F.cross_entropy(net(words[:, 1:]), words[:, 0])
        opt.zero_grad()
        (loss / world).backward()
        for p in net.parameters():
            dist.all_reduce(p.grad)
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads let go of Python objects before the interpreter ends


if __name__ == "__main__":
    main()
