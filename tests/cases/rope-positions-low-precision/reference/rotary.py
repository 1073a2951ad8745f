import torch
import torch.nn as nn


class Rotary(nn.Module):
    def __init__(self, dim, base=500.0):
        super().__init__()
        self.inv_freq = base ** (-torch.arange(0, dim, 2).float() / dim)

    def forward(self, x):
        positions = torch.arange(x.size(-2), dtype=torch.float32)
        angle = torch.outer(positions, self.inv_freq)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
