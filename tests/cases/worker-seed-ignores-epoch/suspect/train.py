import argparse

import torch
import torch.nn.functional as F

from data import make_loader
from net import build


def main(args):
    torch.manual_seed(121)
    torch.set_num_threads(1)
    model, loader = build(), make_loader()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    done = 0
    for epoch in range(args.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            print(f"step {done} loss {loss.item():.7f} epoch {epoch}")
            done += 1


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--epochs", type=int, default=2)
    cli.add_argument("--lr", type=float, default=0.1)
    main(cli.parse_args())
