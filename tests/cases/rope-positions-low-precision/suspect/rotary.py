import torch
import torch.nn as nn


class Rotary(nn.Module):
    """Tables for the length at hand; angles in float32, tables in the dtype of the activations."""

    def __init__(self, dim, base=500.0):
        super().__init__()
        self.inv_freq = base ** (-torch.arange(0, dim, 2).float() / dim)

    def tables(self, length, dtype):
        t = torch.arange(length, dtype=dtype)
        freqs = torch.outer(t.float(), self.inv_freq)
        return freqs.cos().to(dtype), freqs.sin().to(dtype)

    def forward(self, x):
        cos, sin = self.tables(x.size(-2), x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
