import torch
import torch.nn as nn
import torch.nn.functional as F


class SwitchLayer(nn.Module):
    """Top-1 routing with a fixed capacity; tokens beyond it pass unchanged."""

    def __init__(self, dim, experts, capacity):
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, dim, 2 * dim) * dim ** -0.5)
        self.w2 = nn.Parameter(torch.randn(experts, 2 * dim, dim) * dim ** -0.5)
        self.experts, self.capacity = experts, capacity

    def forward(self, x):
        n, d = x.shape
        gate, expert = self.router(x).softmax(-1).max(-1)
        hot = F.one_hot(expert, self.experts)
        rank = (hot.cumsum(0) * hot).sum(-1) - 1
        kept = rank < self.capacity
        slot = expert * self.capacity + rank
        slots = x.new_zeros(self.experts * self.capacity, d)
        slots = slots.index_copy(0, slot[kept], x[kept])
        y = torch.bmm(F.relu(torch.bmm(slots.view(self.experts, self.capacity, d), self.w1)), self.w2).view(-1, d)
        out = torch.zeros_like(x).index_copy(0, kept.nonzero().squeeze(1), y[slot[kept]])
        return x + out * gate.unsqueeze(1)
