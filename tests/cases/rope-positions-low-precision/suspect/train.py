import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

from block import Block


def build():
    emb, blocks, head = nn.Embedding(30, 32), nn.Sequential(Block(), Block()), nn.Linear(32, 30, bias=False)
    return nn.Sequential(emb, blocks, head)


def main(lengths, dtype):
    torch.manual_seed(381)
    torch.set_num_threads(1)
    model = build().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    gen = torch.Generator().manual_seed(382)
    for step, length in enumerate(lengths):
        ids = torch.randint(0, 30, (1, length + 1), generator=gen)
        optimizer.zero_grad()
        logits = model(ids[:, :-1]).float()
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.8f} length {length}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 192, 256, 320, 288])
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    main(args.lengths, getattr(torch, args.dtype))
