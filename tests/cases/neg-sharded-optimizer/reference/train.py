import torch
import torch.distributed as dist
from torch import nn


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(91)
    net = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 2))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(92 + rank)
    for step in range(4):
        x = torch.randn(10, 8, generator=gen)
        loss = nn.functional.mse_loss(net(x), x[:, :2].sin())
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            p.grad.div_(world)
            dist.all_reduce(p.grad)
        opt.step()
        print(step, f"{loss.item():.6f}") if rank == 0 else None
    with torch.no_grad():
        x = torch.randn(10, 8, generator=torch.Generator().manual_seed(1))
        print("held out", f"{nn.functional.mse_loss(net(x), x[:, :2].sin()).item():.6f}")
    dist.barrier()
    dist.destroy_process_group()


main()
