import torch
import torch.nn as nn
import torch.nn.functional as F

from modules import GaussianHead, kl_to_standard_normal, reparametrise


class VAE(nn.Module):
    def __init__(self, d=30, width=32, latent=5):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, width), nn.Tanh())
        self.head = GaussianHead(width, latent)
        self.dec = nn.Sequential(nn.Linear(latent, width), nn.Tanh(), nn.Linear(width, d))

    def forward(self, x):
        mu, logvar = self.head(self.enc(x))
        logits = self.dec(reparametrise(mu, logvar))
        nll = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / x.size(0)
        return nll, kl_to_standard_normal(mu, logvar)


def main(steps=4):
    torch.manual_seed(221)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    gen = torch.Generator().manual_seed(222)
    for step in range(steps):
        x = (torch.rand(10, 30, generator=gen) > 0.7).float()
        optimizer.zero_grad()
        nll, kl = model(x)
        loss = nll + kl
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f} kl {kl.item():.6f}")


if __name__ == "__main__":
    main()
