import torch
from attention import CausalSelfAttention
from torch import nn


class Stack(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.ln = nn.ModuleList([nn.LayerNorm(24) for _ in range(depth)])
        self.attn = nn.ModuleList([CausalSelfAttention(24, 4) for _ in range(depth)])

    def forward(self, hidden):
        for ln, attn in zip(self.ln, self.attn):
            hidden = hidden + attn(ln(hidden))
        return hidden


def main():
    torch.manual_seed(33)
    model = Stack()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    gen = torch.Generator().manual_seed(34)
    for step in range(4):
        batch = torch.randn(3, 7, 24, generator=gen)
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(batch), batch.cumsum(1))
        loss.backward()
        optimizer.step()
        print(step, f"{loss.item():.6f}")


main()
