import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, width=16, depth=11):
        super().__init__()
        self.embed = nn.Linear(10, width)
        self.ffn = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.ffn:
            x = x + 0.3 * torch.tanh(layer(x))
        return self.head(x)
