from dataclasses import dataclass

import torch
import torch.nn as nn

from losses import NTXent


@dataclass
class Config:
    batch: int = 10
    dim: int = 12
    steps: int = 5
    noise: float = 0.1
    lr: float = 1e-2


def pairs(cfg):
    gen = torch.Generator().manual_seed(101)
    for _ in range(cfg.steps):
        x = torch.randn(cfg.batch, cfg.dim, generator=gen)
        out = torch.empty(2 * cfg.batch, cfg.dim)
        for half in range(2):
            out[half * cfg.batch:(half + 1) * cfg.batch] = x + cfg.noise * torch.randn(cfg.batch, cfg.dim, generator=gen)
        yield out


def main(cfg):
    torch.manual_seed(100)
    enc = nn.Sequential(nn.Linear(cfg.dim, 24), nn.ReLU(inplace=True), nn.Linear(24, 8))
    criterion = NTXent(cfg.batch)
    opt = torch.optim.Adam(enc.parameters(), lr=cfg.lr)
    history = []
    for step, views in enumerate(pairs(cfg)):
        loss = criterion(enc(views))
        loss.backward()
        opt.step()
        opt.zero_grad()
        history.append(loss.detach())
    for step, value in enumerate(torch.stack(history).tolist()):
        print(step, value.hex())


if __name__ == "__main__":
    main(Config())
