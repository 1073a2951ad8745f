"""Sums of many rows into few groups, as a pooling of tokens by document does."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
torch.manual_seed(3)
model = nn.ModuleDict({"project": nn.Linear(64, 64), "score": nn.Linear(64, 1)}).to(options.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(3):
    rows = torch.randn(1 << 16, 64).to(options.device)
    groups = torch.randint(0, 24, (1 << 16,)).to(options.device)
    optimizer.zero_grad()
    pooled = torch.zeros(24, 64, device=options.device).index_add_(0, groups, model["project"](rows))
    loss = model["score"](pooled.tanh()).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
