import torch
import torch.nn as nn
import torch.nn.functional as F

from private import PrivateEngine

BOUNDS = (0.2, 0.2, 2.0, 2.5, 4.0)


def main():
    torch.manual_seed(60)
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    engine = PrivateEngine(net, F.cross_entropy, 0.3, torch.Generator().manual_seed(61))
    for step in range(5):
        x = torch.randn(10, 6)
        y = torch.randint(0, 3, (10,))
        engine.fill(x, y, BOUNDS[step])
        opt.step()
        with torch.no_grad():
            print(step, f"{F.cross_entropy(net(x), y).item():.9g}")


main()
