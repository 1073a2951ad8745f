import torch
import torch.nn.functional as F

from net import build


def main():
    torch.manual_seed(261)
    net = build()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(5):
        x, y = torch.randn(8, 3, 8, 8), torch.randint(0, 5, (8,))
        loss = F.cross_entropy(net(x), y, label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
