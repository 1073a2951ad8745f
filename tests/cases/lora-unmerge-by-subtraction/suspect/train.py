import torch
import torch.nn as nn

from lora import LoraLinear


class Tuner:
    def __init__(self):
        torch.manual_seed(21)
        self.net = nn.Sequential(nn.Linear(10, 24), nn.SiLU(), nn.Linear(24, 6))
        for i in (0, 2):
            self.net[i] = LoraLinear(self.net[i])
        self.opt = torch.optim.AdamW([p for p in self.net.parameters() if p.requires_grad], lr=0.02)
        self.x, self.y = torch.randn(64, 10), torch.randint(0, 6, (64,))

    def train_step(self, i):
        rows = slice(i * 8, i * 8 + 8)
        loss = nn.functional.cross_entropy(self.net(self.x[rows]), self.y[rows])
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def validate(self):
        layers = [m for m in self.net if isinstance(m, LoraLinear)]
        for m in layers:
            m.merge()
        with torch.no_grad():
            value = nn.functional.cross_entropy(self.net(self.x[48:]), self.y[48:]).item()
        for m in layers:
            m.unmerge()
        return value

    def fit(self):
        for i in range(6):
            print(i, f"{self.train_step(i):.9g}")
            if i % 3 == 2:
                print("val", f"{self.validate():.9g}")


Tuner().fit()
