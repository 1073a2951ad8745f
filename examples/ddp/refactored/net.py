"""An MLP with BatchNorm and a running scale of its inputs; DDP broadcasts both from rank 0 before each forward."""

import torch
from torch import nn


class RunningScale(nn.Module):
    """Divides by a running mean of the absolute inputs."""

    def __init__(self, features: int, rate: float = 0.1) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("scale", torch.ones(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.scale.lerp_(x.abs().mean(dim=0), self.rate)
        return x / self.scale


class Net(nn.Sequential):
    def __init__(self, features: int, width: int, classes: int) -> None:
        super().__init__(
            RunningScale(features),
            nn.Linear(features, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(width, classes),
        )
