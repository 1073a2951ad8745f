import torch
import torch.nn.functional as F

from nets import Regressor


def main():
    torch.manual_seed(13)
    net = Regressor()
    opt = torch.optim.SGD(net.parameters(), lr=0.12)
    g = torch.Generator().manual_seed(14)
    held_x = torch.randn(64, 12, generator=g)
    held_y = held_x[:, 0] * held_x[:, 1]
    best = float("inf")
    for step in range(8):
        net.train()
        x = torch.randn(16, 12, generator=g)
        loss = F.mse_loss(net(x), x[:, 0] * x[:, 1])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")
        if step % 2 == 1:
            net.eval()
            with torch.no_grad():
                val = F.mse_loss(net(held_x), held_y).item()
            best = min(best, val)
            print(f"  val {val:.5f} best {best:.5f}")


if __name__ == "__main__":
    main()
