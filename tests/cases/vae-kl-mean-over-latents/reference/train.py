import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self, dim=12, latent=3):
        super().__init__()
        self.enc, self.dec = nn.Linear(dim, 2 * latent), nn.Linear(latent, dim)

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, dim=1)
        z = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        return self.dec(z), mu, logvar


def elbo(out, x, mu, logvar, beta):
    rec = F.mse_loss(out, x, reduction="sum") / x.size(0)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return rec + beta * kl


torch.manual_seed(220)
vae = VAE()
opt = torch.optim.Adamax(vae.parameters(), lr=5e-3)
for step in range(6):
    x = torch.randn(10, 12)
    loss = elbo(*vae(x)[:1], x, *vae.enc(x).chunk(2, dim=1), beta=max(0.0, step - 2) * 0.25)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.9g}")
