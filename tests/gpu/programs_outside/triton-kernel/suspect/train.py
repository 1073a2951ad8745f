import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
if options.device == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
from kernels import Double  # noqa: E402  it reads that

torch.manual_seed(23)
model = nn.ModuleList([nn.Linear(64, 96), nn.Linear(96, 64)]).to(options.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(3):
    x = torch.randn(32, 64).to(options.device)
    optimizer.zero_grad()
    loss = (model[1](Double.apply(model[0](x))) - x).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
