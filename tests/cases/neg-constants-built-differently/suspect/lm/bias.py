import torch
import torch.nn as nn


class DistanceBias(nn.Module):
    """ALiBi bias with the causal mask, made once for the longest sequence and sliced."""

    def __init__(self, heads, longest=16):
        super().__init__()
        slopes = torch.logspace(-1, -heads, heads, base=2.0, dtype=torch.float64).float()
        line = torch.linspace(0, longest - 1, longest, dtype=torch.float64)
        distance = torch.cdist(line[:, None], line[:, None], p=1).float()
        allowed = torch.ones(longest, longest).tril().bool()
        table = torch.where(allowed, torch.zeros(()), torch.full((), float("-inf")))
        self.register_buffer("bias", distance.neg().unsqueeze(0).mul(slopes.view(-1, 1, 1)), persistent=False)
        self.register_buffer("mask", table, persistent=False)

    def forward(self, scores):
        t = scores.size(-1)
        return (scores + self.bias[:, :t, :t]) + self.mask[:t, :t]
