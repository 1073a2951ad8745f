import torch
import torch.nn as nn


class GaussianHead(nn.Module):
    """Mean and log-variance of a diagonal Gaussian; starts at unit variance."""

    def __init__(self, width, latent):
        super().__init__()
        self.mu, self.logvar = nn.Linear(width, latent), nn.Linear(width, latent)
        for p in self.logvar.parameters():
            nn.init.zeros_(p)

    def forward(self, h):
        return self.mu(h), self.logvar(h)


def reparametrise(mu, logvar):
    sigma = logvar.exp()
    noise = torch.randn_like(sigma)
    return mu + noise * sigma


def kl_to_standard_normal(mu, logvar):
    return -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum() / mu.size(0)
