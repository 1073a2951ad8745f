import torch

from model import Net


def main():
    torch.manual_seed(13)
    net = Net()
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    for step in range(4):
        x = torch.randn(6, 16)
        loss = (net(x).squeeze(1) - x.mean(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, f"{loss.item():.9g}")


main()
