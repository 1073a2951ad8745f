import torch
import torch.nn as nn
import torch.nn.functional as F

from prefetch import Prefetcher


def main():
    torch.manual_seed(321)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, (x, y) in enumerate(Prefetcher(6, 322)):
        opt.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
