import argparse

import torch
from norm import RmsNorm
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
torch.manual_seed(17)
model = nn.Sequential(nn.Linear(128, 256), RmsNorm(256), nn.SiLU(), nn.Linear(256, 128)).to(options.device, torch.bfloat16)
with torch.no_grad():
    model[1].weight.uniform_(0.5, 1.5)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(4):
    x = torch.randn(64, 128).to(options.device, torch.bfloat16)
    optimizer.zero_grad()
    loss = (model(x) - x).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
