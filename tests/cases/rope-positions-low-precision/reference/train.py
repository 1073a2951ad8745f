import torch
import torch.nn as nn
import torch.nn.functional as F

from block import Block


def main():
    torch.manual_seed(381)
    torch.set_num_threads(1)
    emb, blocks, head = nn.Embedding(30, 32), nn.Sequential(Block(), Block()), nn.Linear(32, 30, bias=False)
    net = nn.Sequential(emb, blocks, head).bfloat16()
    opt = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    g = torch.Generator().manual_seed(382)
    for step, length in enumerate([128, 192, 256, 320, 288]):
        ids = torch.randint(0, 30, (1, length + 1), generator=g)
        loss = F.cross_entropy(net(ids[:, :-1]).float().flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.8f}")


if __name__ == "__main__":
    main()
