import torch.nn as nn


class Stage(nn.Module):
    def __init__(self, cin, cout, groups, pool):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.norm = nn.GroupNorm(groups, cout)
        self.pool = pool

    def forward(self, x):
        return self.pool(self.norm(self.conv(x)).relu())


class ConvNet(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.low = Stage(1, 8, 2, nn.MaxPool2d(2))
        self.high = Stage(8, 16, 4, nn.AdaptiveAvgPool2d(2))
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.high(self.low(x)).flatten(1))
