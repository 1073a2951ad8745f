import torch
import torch.nn as nn
import torch.nn.functional as F


class Router(nn.Module):
    def __init__(self, dim, experts, jitter=0.1):
        super().__init__()
        self.proj = nn.Linear(dim, experts, bias=False)
        self.jitter = jitter

    def forward(self, x):
        if self.training:
            x = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)
        return F.softmax(self.proj(x), dim=-1)


class MoE(nn.Module):
    def __init__(self, dim=16, experts=4, k=2):
        super().__init__()
        self.router = Router(dim, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)) for _ in range(experts))
        self.k = k

    def forward(self, x):
        probs = self.router(x)
        self.load = probs.detach().mean(0)
        weight, index = probs.topk(self.k, dim=-1)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            token, slot = (index == e).nonzero(as_tuple=True)
            if token.numel():
                out = out.index_add(0, token, expert(x[token]) * weight[token, slot, None])
        return x + out
