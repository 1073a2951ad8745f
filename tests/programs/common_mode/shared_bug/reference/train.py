import math

import torch
from torch import nn

torch.manual_seed(3)


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(d)  # wrong: the width of a head is d / heads
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


model = nn.Sequential(nn.Linear(6, 16), Attention(16, 4), nn.GELU(), nn.Linear(16, 6))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(4):
    x = torch.randn(3, 5, 6)
    loss = (model(x) - x.roll(1, dims=1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
