import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


def real_batch(g):
    angle = torch.rand(32, generator=g) * 6.2831853
    return torch.stack([angle.cos(), angle.sin()], 1)


def main():
    torch.manual_seed(21)
    G, D = mlp(4, 32, 32, 2), mlp(2, 32, 32, 1)
    opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.99))
    opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.99))
    g = torch.Generator().manual_seed(22)
    for it in range(4):
        opt_d.zero_grad()
        opt_g.zero_grad()
        real, z = real_batch(g), torch.randn(32, 4, generator=g)
        fake = G(z)
        loss_d = F.softplus(-D(real)).mean() + F.softplus(D(fake.detach())).mean()
        loss_d.backward()
        opt_d.step()
        for p in D.parameters():
            p.requires_grad_(False)
        loss_g = F.softplus(-D(fake)).mean()
        loss_g.backward()
        for p in D.parameters():
            p.requires_grad_(True)
        opt_g.step()
        print(f"it {it} D loss {loss_d.item():.6f} G loss {loss_g.item():.6f}")


if __name__ == "__main__":
    main()
