from dataclasses import dataclass

import torch
import torch.nn.functional as F

from nets import Regressor


@dataclass
class Config:
    seed: int = 13
    steps: int = 8
    lr: float = 0.12
    eval_every: int = 2


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.net = Regressor()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=cfg.lr)
        self.gen = torch.Generator().manual_seed(cfg.seed + 1)
        self.held_out = self.sample(64)
        self.best = float("inf")

    def sample(self, n):
        x = torch.randn(n, 12, generator=self.gen)
        return x, x[:, 0] * x[:, 1]

    @torch.no_grad()
    def validate(self):
        self.net.eval()
        x, y = self.held_out
        val = F.mse_loss(self.net(x), y).item()
        print(f"  val {val:.5f} best {min(self.best, val):.5f}")
        if val >= self.best:
            return
        self.best = val
        self.net.train()

    def training_step(self):
        x, y = self.sample(16)
        self.opt.zero_grad()
        loss = F.mse_loss(self.net(x), y)
        loss.backward()
        self.opt.step()
        return loss.item()

    def fit(self):
        for step in range(self.cfg.steps):
            print(f"step {step} loss {self.training_step():.7f}")
            if (step + 1) % self.cfg.eval_every == 0:
                self.validate()


if __name__ == "__main__":
    Trainer(Config()).fit()
