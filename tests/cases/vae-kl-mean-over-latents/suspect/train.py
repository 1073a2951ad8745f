import torch

from model import VAE, Elbo

torch.manual_seed(220)
vae, criterion = VAE(), Elbo()
opt = torch.optim.Adamax(vae.parameters(), lr=5e-3)
for step in range(6):
    x = torch.randn(10, 12)
    out = vae(x)
    loss = criterion(out, x, *vae.encode(x), step)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.9g}")
