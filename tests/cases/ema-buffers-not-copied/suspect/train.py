import torch
import torch.nn as nn
import torch.nn.functional as F

from ema import EMA


@torch.no_grad()
def evaluate(model, x, y):
    return F.cross_entropy(model(x), y).item()


def run():
    torch.manual_seed(11)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    ema = EMA(net)
    images, labels = torch.randn(60, 1, 8, 8), torch.randint(0, 5, (60,))
    held = images[40:], labels[40:]
    for step in range(5):
        x, y = images[step * 8:][:8], labels[step * 8:][:8]
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(net)
        print("train", step, f"{loss.item():.9g}")
        if step % 3 == 2:
            print("eval", step, f"{evaluate(ema.model, *held):.9g}")


run()
