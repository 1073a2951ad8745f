import torch
from torch import nn


class RmsNorm(nn.Module):
    """Divides by the root of the mean square, computed in float32."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        narrow = wide.to(x.dtype)
        return narrow * self.weight
