import torch
import torch.nn as nn

from sgd import FusedInBackward


def main():
    torch.manual_seed(260)
    net = nn.Sequential(nn.Linear(7, 21), nn.SiLU(), nn.Linear(21, 4))
    FusedInBackward(net.parameters(), lr=0.1, momentum=0.9, dampening=0.1, parts=3)
    gen = torch.Generator().manual_seed(261)
    for step in range(4):
        losses = []
        for _ in range(3):
            x, y = torch.randn(5, 7, generator=gen), torch.randint(0, 4, (5,), generator=gen)
            loss = nn.functional.cross_entropy(net(x), y) / 3
            loss.backward()
            losses.append(loss.detach())
        print(step, float(sum(v.item() for v in losses)).hex())


main()
