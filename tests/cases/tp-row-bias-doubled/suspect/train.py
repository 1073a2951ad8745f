import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from parallel import ColumnParallelLinear, RowParallelLinear


class MLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        up, down = torch.randn(hidden, dim) * dim ** -0.5, torch.randn(dim, hidden) * hidden ** -0.5
        self.up, self.down = ColumnParallelLinear(up), RowParallelLinear(down)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.inp = nn.Linear(10, dim)
        self.blocks = nn.ModuleList(MLP(dim, 32) for _ in range(2))
        self.out = nn.Linear(dim, 5)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


def fit(net, steps, gen):
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x, y = torch.randn(8, 10, generator=gen), torch.randint(0, 5, (8,), generator=gen)
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.7f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(141)
    fit(Net(), 4, torch.Generator().manual_seed(142))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.3)  # gloo's threads let go of Python objects before the interpreter ends
