import torch

from data import batches
from model import CausalLoss, Decoder


def main(seed=51):
    torch.manual_seed(seed)
    net, criterion = Decoder(), CausalLoss()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    seen = 0
    for step, (ids, mask) in enumerate(batches(seed + 1)):
        opt.zero_grad()
        loss = criterion(net(ids, mask), ids, mask)
        loss.backward()
        opt.step()
        seen += int(mask.sum())
        print(f"step {step} loss {loss.item():.7f} tokens {seen}")


if __name__ == "__main__":
    main()
