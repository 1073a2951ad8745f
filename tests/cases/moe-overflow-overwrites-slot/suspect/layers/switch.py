import torch
import torch.nn as nn
import torch.nn.functional as F

from .gating import top1_gating


class SwitchLayer(nn.Module):
    def __init__(self, dim, experts, capacity):
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, dim, 2 * dim) * dim ** -0.5)
        self.w2 = nn.Parameter(torch.randn(experts, 2 * dim, dim) * dim ** -0.5)
        self.experts, self.capacity = experts, capacity

    def dispatch(self, x, index):
        slots = torch.zeros(self.experts * self.capacity, x.size(1))
        return slots.index_copy(0, index, x).view(self.experts, self.capacity, -1)

    def forward(self, x):
        expert, location, weight = top1_gating(self.router(x), self.capacity)
        index = expert * self.capacity + location
        hidden = F.relu(torch.bmm(self.dispatch(x, index), self.w1))
        y = torch.bmm(hidden, self.w2).flatten(0, 1)
        return x + y[index] * weight.unsqueeze(1)
