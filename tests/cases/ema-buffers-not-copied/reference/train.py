import torch
import torch.nn as nn

from ema import EMA


def run():
    torch.manual_seed(11)
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    ema = EMA(net)
    images, labels = torch.randn(60, 1, 8, 8), torch.randint(0, 5, (60,))
    for step in range(5):
        x, y = images[step * 8:step * 8 + 8], labels[step * 8:step * 8 + 8]
        opt.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
        ema.update(net)
        print("train", step, f"{loss.item():.9g}")
        if step % 3 == 2:
            with torch.no_grad():
                print("eval", step, f"{nn.functional.cross_entropy(ema.model(images[40:]), labels[40:]).item():.9g}")


run()
