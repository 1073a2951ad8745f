import torch
from torch import nn


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head = n_head

    def heads(self, x):
        b, t, c = x.shape
        return x.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)

    def forward(self, x):
        t, c = x.shape[1:]
        q, k, v = map(self.heads, self.c_attn(x).split(c, dim=2))
        weights = q @ k.transpose(-2, -1) / (c // self.n_head) ** 0.5
        weights = weights + torch.triu(torch.full((t, t), -torch.inf), 1)
        y = torch.softmax(weights, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).flatten(2))
