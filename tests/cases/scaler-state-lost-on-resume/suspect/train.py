import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

from amp import MixedPrecision


def network():
    return nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 3))


class Experiment:
    def __init__(self):
        torch.manual_seed(111)
        self.net = network()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=2e-3, eps=1e-6)
        self.amp = MixedPrecision(self.opt)
        self.step = 0

    def checkpoint(self):
        return copy.deepcopy({"net": self.net.state_dict(), "opt": self.opt.state_dict(), "step": self.step})

    @classmethod
    def resume(cls, saved):
        self = cls()
        self.net.load_state_dict(saved["net"])
        self.opt.load_state_dict(saved["opt"])
        self.step = saved["step"]
        return self

    def train(self, until):
        while self.step < until:
            gen = torch.Generator().manual_seed(500 + self.step)
            x = torch.randn(12, 20, generator=gen)
            self.opt.zero_grad()
            with self.amp.forward():
                out = self.net(x)
                loss = F.mse_loss(out.float(), x[:, :3].tanh())
            self.amp.backward(loss)
            self.amp.step()
            print(f"step {self.step} loss {loss.item():.9f}")
            self.step += 1


first = Experiment()
first.train(4)
Experiment.resume(first.checkpoint()).train(7)
