import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from comm import CopyToRanks, SumOverRanks


class ShardedMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        world, rank = dist.get_world_size(), dist.get_rank()
        up, down = torch.randn(hidden, dim) * dim ** -0.5, torch.randn(dim, hidden) * hidden ** -0.5
        self.up = nn.Parameter(up.chunk(world, 0)[rank].clone())
        self.down = nn.Parameter(down.chunk(world, 1)[rank].clone())
        self.up_bias, self.down_bias = nn.Parameter(torch.zeros(hidden // world)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        h = F.relu(F.linear(CopyToRanks.apply(x), self.up, self.up_bias))
        return SumOverRanks.apply(F.linear(h, self.down)) + self.down_bias


class Net(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.inp = nn.Linear(10, dim)
        self.mlp = nn.ModuleList(ShardedMLP(dim, 32) for _ in range(2))
        self.out = nn.Linear(dim, 5)

    def forward(self, x):
        x = self.inp(x)
        for mlp in self.mlp:
            x = x + mlp(x)
        return self.out(x)


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(141)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(142)
    for step in range(4):
        x, y = torch.randn(8, 10, generator=g), torch.randint(0, 5, (8,), generator=g)
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads let go of Python objects before the interpreter ends


if __name__ == "__main__":
    main()
