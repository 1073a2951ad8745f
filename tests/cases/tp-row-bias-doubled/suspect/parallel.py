import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from comm import CopyToRanks, SumOverRanks


def shard(full, dim):
    return nn.Parameter(full.chunk(dist.get_world_size(), dim)[dist.get_rank()].clone())


class ColumnParallelLinear(nn.Module):
    def __init__(self, full_weight):
        super().__init__()
        self.weight = shard(full_weight, 0)
        self.bias = nn.Parameter(torch.zeros(self.weight.size(0)))

    def forward(self, x):
        return F.linear(CopyToRanks.apply(x), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    def __init__(self, full_weight):
        super().__init__()
        self.weight = shard(full_weight, 1)
        self.bias = nn.Parameter(torch.zeros(self.weight.size(0)))

    def forward(self, x):
        partial = F.linear(x, self.weight, self.bias)
        return SumOverRanks.apply(partial)
