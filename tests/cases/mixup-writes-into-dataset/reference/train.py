import torch
import torch.nn as nn
import torch.nn.functional as F

from augment import mixup


def main():
    torch.manual_seed(50)
    images = torch.rand(24, 3, 6, 6)
    labels = F.one_hot(torch.randint(0, 4, (24,)), 4).float()
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    gen = torch.Generator().manual_seed(51)
    for epoch in range(2):
        for i in range(0, 24, 8):
            x, y = mixup(images[i:i + 8], labels[i:i + 8], 0.7, gen)
            loss = -(F.log_softmax(net(x), 1) * y).sum(1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(epoch, i, f"{loss.item():.9g}")


main()
