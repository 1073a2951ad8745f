import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(100)
enc = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 8))
opt = torch.optim.Adam(enc.parameters(), lr=1e-2)
gen = torch.Generator().manual_seed(101)
for step in range(5):
    x = torch.randn(10, 12, generator=gen)
    views = torch.cat([x + 0.1 * torch.randn(10, 12, generator=gen), x + 0.1 * torch.randn(10, 12, generator=gen)])
    z = F.normalize(enc(views), dim=1)
    sim = z @ z.t() / 0.5
    sim = sim.masked_fill(torch.eye(20, dtype=torch.bool), float("-inf"))
    target = torch.arange(20).roll(10)
    loss = F.cross_entropy(sim, target)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item().hex())
