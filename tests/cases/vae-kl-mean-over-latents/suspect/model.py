import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self, dim=12, latent=3):
        super().__init__()
        self.enc, self.dec = nn.Linear(dim, 2 * latent), nn.Linear(latent, dim)

    def encode(self, x):
        return self.enc(x).chunk(2, dim=1)

    def forward(self, x):
        mu, logvar = self.encode(x)
        std = (0.5 * logvar).exp()
        return self.dec(mu + std * torch.randn_like(std))


class Elbo(nn.Module):
    def __init__(self, warmup=2, rate=0.25):
        super().__init__()
        self.warmup, self.rate = warmup, rate

    def forward(self, out, x, mu, logvar, step):
        rec = F.mse_loss(out, x, reduction="sum") / x.size(0)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean(1).mean()
        return rec + max(0.0, step - self.warmup) * self.rate * kl
