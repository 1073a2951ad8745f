import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--accum", type=int, default=2)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--decay-every", type=int, default=4)
    return p.parse_args()


def convnet(classes=6):
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(64, classes))


def main():
    args = parse()
    torch.manual_seed(5)
    net = convnet()
    opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, nesterov=True, foreach=True)
    sched = torch.optim.lr_scheduler.StepLR(opt, args.decay_every, gamma=0.5)
    g = torch.Generator().manual_seed(6)
    for step in range(args.steps):
        shown = 0.0
        for _ in range(args.accum):
            x = torch.randn(6, 1, 12, 12, generator=g)
            y = torch.randint(0, 6, (6,), generator=g)
            loss = F.cross_entropy(net(x), y) / args.accum
            loss.backward()
            shown += loss.item()
        opt.step()
        sched.step()
        opt.zero_grad()
        print(f"step {step} loss {shown:.7f}")


if __name__ == "__main__":
    main()
