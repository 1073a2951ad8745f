import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

from data import loader


def epochs(n, workers):
    batches, step = loader(workers), 0
    for _ in range(n):
        for x, y in batches:
            yield step, x, y
            step += 1


def main(workers):
    torch.manual_seed(301)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for step, x, y in epochs(2, workers):
        opt.zero_grad()
        loss = F.mse_loss(net(x).squeeze(1), y)
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--workers", type=int, default=2)
    main(p.parse_args().workers)
