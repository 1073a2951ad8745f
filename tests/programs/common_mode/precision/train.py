"""One training in a precision that its argument names."""

import contextlib
import sys

import torch
from torch import nn

policy = sys.argv[1] if len(sys.argv) > 1 else "float32"
torch.manual_seed(5)


class Block(nn.Module):
    def __init__(self, dim, low):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)
        self.low = low

    def forward(self, x):
        h = self.norm(x)
        if self.low:
            h = h.bfloat16().to(x.dtype)
        return x + self.down(nn.functional.gelu(self.up(h)))


model = nn.Sequential(nn.Linear(8, 16), *[Block(16, policy == "place" and at == 1) for at in range(3)], nn.Linear(16, 8))
if policy == "bfloat16":
    model = model.bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(3):
    x = torch.randn(4, 8)
    target = x.flip(1)
    if policy == "bfloat16":
        x, target = x.bfloat16(), target.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16) if policy == "autocast" else contextlib.nullcontext():
        loss = nn.functional.mse_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
