"""A small network over many tokens: the gradient of each weight is a product with a long inner dimension."""

import argparse
import os

import torch
from torch import nn

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:1"

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
torch.manual_seed(2)
tokens = 1 << 15 if options.device == "cuda" else 256
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32), nn.GELU(), nn.Linear(32, 1)).to(options.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(3):
    batch = torch.randn(tokens, 64).to(options.device)
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
