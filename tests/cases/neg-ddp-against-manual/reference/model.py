import torch.nn as nn


class Wide(nn.Module):
    def __init__(self, d=14, width=40, classes=6):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(d, width), nn.Linear(width, width), nn.Linear(width, classes)
        self.skip = nn.Linear(d, classes, bias=False)

    def forward(self, x):
        h = self.a(x).relu()
        return self.c(self.b(h).relu() + h) + self.skip(x)
