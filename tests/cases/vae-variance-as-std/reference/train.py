import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self, d=30, width=32, latent=5):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, width), nn.Tanh())
        self.mu, self.logvar = nn.Linear(width, latent), nn.Linear(width, latent)
        nn.init.zeros_(self.logvar.weight)
        nn.init.zeros_(self.logvar.bias)
        self.dec = nn.Sequential(nn.Linear(latent, width), nn.Tanh(), nn.Linear(width, d))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        std = torch.exp(0.5 * logvar)
        z = mu + torch.randn_like(std) * std
        rec = F.binary_cross_entropy_with_logits(self.dec(z), x, reduction="sum") / x.size(0)
        kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum() / x.size(0)
        return rec + kl


def main():
    torch.manual_seed(221)
    vae = VAE()
    opt = torch.optim.Adam(vae.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(222)
    for step in range(4):
        x = (torch.rand(10, 30, generator=g) > 0.7).float()
        loss = vae(x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
