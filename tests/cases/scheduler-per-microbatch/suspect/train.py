import argparse
import logging

import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import StepLR

from net import ConvNet

log = logging.getLogger("train")


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--accum", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--decay-every", type=int, default=4)
    return parser.parse_args()


def micro_batches(seed):
    gen = torch.Generator().manual_seed(seed)
    while True:
        yield torch.randn(6, 1, 12, 12, generator=gen), torch.randint(0, 6, (6,), generator=gen)


def train(args):
    torch.manual_seed(5)
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, foreach=True)
    scheduler = StepLR(optimizer, args.decay_every, gamma=0.5)
    total, done = 0.0, 0
    for micro, (images, labels) in enumerate(micro_batches(6)):
        sync = (micro + 1) % args.accum == 0
        loss = F.cross_entropy(model(images), labels) / args.accum
        loss.backward()
        total += loss.item()
        if sync:
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {done} loss {total:.7f}")
            total, done = 0.0, done + 1
        scheduler.step()
        log.info("lr %s", scheduler.get_last_lr())
        if done == args.steps:
            break


if __name__ == "__main__":
    train(get_args())
