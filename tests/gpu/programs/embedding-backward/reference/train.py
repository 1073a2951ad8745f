"""The largest embedding of each bag of words; many bags share few words, so many gradients meet in one row."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
torch.manual_seed(5)
bags = nn.EmbeddingBag(12, 64, mode="max").to(options.device)
score = nn.Linear(64, 1).to(options.device)
optimizer = torch.optim.AdamW([*bags.parameters(), *score.parameters()], lr=1e-2, fused=True)
for step in range(3):
    words = torch.randint(0, 12, (8192, 6)).to(options.device)
    wanted = torch.randn(8192, 1).to(options.device)
    optimizer.zero_grad()
    loss = (score(bags(words)) - wanted).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
