import torch
import torch.nn as nn
import torch.nn.functional as F


class NormedConv(nn.Module):
    """A convolution whose weight is gain * direction / |direction|."""

    def __init__(self, cin, cout, kernel, dilation=1):
        super().__init__()
        plain = nn.Conv1d(cin, cout, kernel)
        self.bias = plain.bias
        self.v = nn.Parameter(plain.weight.detach().clone())
        self.g = nn.Parameter(torch.norm_except_dim(self.v, 2, 0).detach())
        self.dilation = dilation
        self.pad = dilation * (kernel - 1) // 2

    def forward(self, x):
        weight = torch._weight_norm(self.v, self.g, 0)
        return F.conv1d(x, weight, self.bias, padding=self.pad, dilation=self.dilation)


class TCN(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        self.first = NormedConv(2, channels, 3)
        self.second = NormedConv(channels, channels, 3, dilation=2)
        self.head = nn.Linear(channels, 1)

    def forward(self, x):
        h = F.elu(self.first(x))
        h = F.elu(self.second(h))
        return self.head(F.adaptive_avg_pool1d(h, 1).squeeze(2)).squeeze(1)
