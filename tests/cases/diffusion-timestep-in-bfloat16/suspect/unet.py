import math

import torch
import torch.nn as nn


class TimeEmbedding(nn.Module):
    def __init__(self, dim, dtype=torch.bfloat16):
        super().__init__()
        self.half = dim // 2
        self.dtype = dtype

    def forward(self, t):
        freqs = torch.exp(-math.log(10000) * torch.arange(self.half) / self.half)
        t = t.to(self.dtype)
        args = t[:, None].float() * freqs
        return torch.cat([args.cos(), args.sin()], dim=-1)


class Denoiser(nn.Module):
    def __init__(self, dim=8, width=32):
        super().__init__()
        self.inp = nn.Linear(dim, width)
        self.embed = TimeEmbedding(width)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU())
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, dim)

    def forward(self, x, t):
        e = self.time(self.embed(t))
        h = self.inp(x) + e
        return self.out(nn.functional.silu(self.mid(h)))
