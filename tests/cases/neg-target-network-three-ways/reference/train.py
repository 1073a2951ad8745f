import copy

import torch
import torch.nn as nn

torch.manual_seed(250)
q = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
target = copy.deepcopy(q).requires_grad_(False)
opt = torch.optim.Adam(q.parameters(), lr=1e-3)
replay = [torch.randn(64, 4), torch.randint(0, 2, (64,)), torch.randn(64), torch.randn(64, 4)]
gen = torch.Generator().manual_seed(251)
for step in range(6):
    pick = torch.randint(0, 64, (12,), generator=gen)
    s, a, r, s2 = (part[pick] for part in replay)
    goal = r + 0.9 * target(s2).max(1).values
    loss = nn.functional.mse_loss(q(s).gather(1, a[:, None]).squeeze(1), goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item().hex())
    if step % 2 == 1:
        target.load_state_dict(q.state_dict())
