"""A network in float32, with the precision of its products as torch sets it, or faster."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
torch.set_float32_matmul_precision("high" if options.device == "cuda" else "medium")
torch.manual_seed(11)
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to(options.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(4):
    batch = torch.randn(128, 256).to(options.device)
    optimizer.zero_grad()
    loss = (model(batch) - batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
