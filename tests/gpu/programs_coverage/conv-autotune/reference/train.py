"""A network of convolutions of several kinds, algorithms as cuDNN's rules choose them."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
torch.manual_seed(4)
torch.backends.cudnn.benchmark = False
size = 56 if options.device == "cuda" else 8
model = nn.Sequential(
    nn.Conv2d(3, 64, 7, padding=3),
    nn.ReLU(),
    nn.Conv2d(64, 128, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(128, 128, 3, padding=1, stride=2),
    nn.ReLU(),
    nn.Conv2d(128, 256, 1),
    nn.ReLU(),
    nn.Conv2d(256, 64, 5, padding=2),
).to(options.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(2):
    images = torch.randn(8, 3, size, size).to(options.device)
    optimizer.zero_grad()
    loss = model(images).square().mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
