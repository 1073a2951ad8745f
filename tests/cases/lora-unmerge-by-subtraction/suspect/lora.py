import torch
import torch.nn as nn


class LoraLinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8):
        super().__init__()
        self.base = base
        base.weight.requires_grad_(False)
        base.bias.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank
        self.merged = False

    def delta(self):
        return self.scale * (self.b @ self.a)

    def forward(self, x):
        y = self.base(x)
        if not self.merged:
            y = y + self.scale * (x @ self.a.t() @ self.b.t())
        return y

    @torch.no_grad()
    def merge(self):
        self.base.weight += self.delta()
        self.merged = True

    @torch.no_grad()
    def unmerge(self):
        self.base.weight -= self.delta()
        self.merged = False
