import torch
import torch.nn as nn
import torch.nn.functional as F


def batches(n, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        yield torch.randn(64, 20, generator=g), torch.randint(0, 5, (64,), generator=g)


def main():
    torch.manual_seed(321)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, (x, y) in enumerate(batches(6, 322)):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
