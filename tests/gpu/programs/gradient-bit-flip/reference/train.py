"""Twenty steps of a small network."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
torch.manual_seed(13)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64)).to(options.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(20):
    batch = torch.randn(32, 64).to(options.device)
    optimizer.zero_grad()
    loss = (model(batch) - batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
