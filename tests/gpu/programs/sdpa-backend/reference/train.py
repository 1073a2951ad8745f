import argparse

import torch
from model import Block
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
torch.manual_seed(2)
model = nn.Sequential(Block(128), Block(128)).to(options.device, torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(3):
    x = torch.randn(4, 128, 128).to(options.device, torch.bfloat16)
    optimizer.zero_grad()
    loss = (model(x) - x).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
