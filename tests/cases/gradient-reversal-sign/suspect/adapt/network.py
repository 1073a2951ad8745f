import torch.nn as nn

from .layers import GradientReversal


class DomainNetwork(nn.Module):
    def __init__(self, d=15, width=24):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(d, width), nn.LeakyReLU(0.1), nn.Linear(width, width), nn.LeakyReLU(0.1))
        self.label, self.domain = nn.Linear(width, 4), nn.Linear(width, 2)
        self.reversal = GradientReversal()

    def forward(self, x, strength):
        shared = self.features(x)
        return self.label(shared), self.domain(self.reversal(shared, strength))
