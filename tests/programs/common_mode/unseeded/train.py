"""One training that is different in every run, because of what its argument names."""

import random  # noqa: TID251 - what this program is about
import sys
import time

import numpy as np
import torch
from torch import nn

what = sys.argv[1]
if what != "torch":
    torch.manual_seed(7)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.25), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.linspace(-1, 1, 96).view(16, 6)
for step in range(3):
    rows = list(range(16))
    if what == "random":
        random.shuffle(rows)
    x = data[torch.tensor(rows)]
    if what == "numpy":
        x = x + torch.from_numpy(np.random.default_rng().normal(0, 0.1, (16, 6)).astype("float32"))
    scale = 1.0 + (time.time_ns() % 997) / 1e4 if what == "clock" else 1.0
    loss = (model(x) * scale).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
