"""Differs in another step in every run: what a race looks like from outside."""

import os
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(11)
# What the clock or a race would decide: here the next line of a file, of which each run takes one away.
lines = Path(os.environ["MOVING_WHERE"]).read_text().split()
Path(os.environ["MOVING_WHERE"]).write_text("\n".join(lines[1:]))
where = int(lines[0])
model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
bias = torch.zeros(1)
for step in range(12):
    x = torch.randn(8, 6)
    if step == where % 10:
        bias.add_((where >> 16) % 1000 / 1e4)
    loss = (model(x) - x.sum(1, keepdim=True) + bias).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
