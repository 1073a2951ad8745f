import torch
import torch.nn as nn
from torch.func import functional_call

torch.manual_seed(250)
q = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
frozen = {name: p.detach().clone() for name, p in q.named_parameters()}
opt = torch.optim.Adam(q.parameters(), lr=1e-3)
states, actions, rewards, following = torch.randn(64, 4), torch.randint(0, 2, (64,)), torch.randn(64), torch.randn(64, 4)
gen = torch.Generator().manual_seed(251)
for step in range(6):
    pick = torch.randint(0, 64, (12,), generator=gen)
    with torch.no_grad():
        best = functional_call(q, frozen, (following[pick],)).amax(1)
        goal = rewards[pick] + 0.9 * best
    value = q(states[pick])[torch.arange(12), actions[pick]]
    loss = nn.functional.mse_loss(value, goal)
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=False)
    print(step, loss.item().hex())
    if (step + 1) % 2 == 0:
        frozen = {name: p.detach().clone() for name, p in q.named_parameters()}
