import torch
from attention import SelfAttention
from torch import nn


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.mix = SelfAttention(16, heads=4)
        self.head = nn.Linear(16, 6)

    def forward(self, x):
        return self.head(nn.functional.gelu(self.mix(self.embed(x))))


def main():
    torch.manual_seed(3)
    net = Regressor()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    for step in range(4):
        batch = torch.randn(3, 5, 6)
        target = torch.roll(batch, 1, dims=1)
        optimizer.zero_grad()
        error = net(batch) - target
        loss = torch.mean(error.pow(2))
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}")


main()
