import torch
import torch.nn as nn

torch.manual_seed(110)
G = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
data, noise = torch.Generator().manual_seed(111), torch.Generator().manual_seed(112)
for step in range(5):
    real = torch.randn(12, 2, generator=data) * 0.5 + 1
    z = torch.randn(12, 4, generator=noise)
    fake = G(z)

    opt_d.zero_grad()
    loss_real = bce(D(real), torch.ones(12, 1))
    loss_real.backward()
    loss_fake = bce(D(fake.detach()), torch.zeros(12, 1))
    loss_fake.backward()
    opt_d.step()

    opt_g.zero_grad()
    loss_g = bce(D(fake), torch.ones(12, 1))
    loss_g.backward()
    opt_g.step()
    print(step, (loss_real + loss_fake).item().hex(), loss_g.item().hex())
