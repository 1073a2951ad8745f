import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import weight_norm

torch.manual_seed(160)
net = nn.Sequential(
    weight_norm(nn.Conv1d(2, 8, 3, padding=1)), nn.ELU(),
    weight_norm(nn.Conv1d(8, 8, 3, padding=2, dilation=2)), nn.ELU(),
    nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 1),
)
opt = torch.optim.NAdam(net.parameters(), lr=5e-3)
gen = torch.Generator().manual_seed(161)
for step in range(5):
    x = torch.randn(6, 2, 20, generator=gen)
    y = x.amax((1, 2))
    loss = nn.functional.smooth_l1_loss(net(x).squeeze(1), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item().hex())
