import torch

from data import batches
from model import Decoder, loss_fn


def main():
    torch.manual_seed(51)
    net = Decoder()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step, (ids, mask) in enumerate(batches(52)):
        loss = loss_fn(net(ids, mask), ids, mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
