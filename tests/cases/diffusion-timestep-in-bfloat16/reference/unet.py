import math

import torch
import torch.nn as nn


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2) / (dim // 2))
    args = t[:, None].float() * freqs
    return torch.cat([args.cos(), args.sin()], dim=-1)


class Denoiser(nn.Module):
    def __init__(self, dim=8, width=32):
        super().__init__()
        self.inp = nn.Linear(dim, width)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU())
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, dim)
        self.width = width

    def forward(self, x, t):
        h = self.inp(x) + self.time(timestep_embedding(t, self.width))
        return self.out(nn.functional.silu(self.mid(h)))
