import torch
import torch.nn.functional as F

from masks import Packing
from net import Packed

DOCS = [(6, 6), (6, 6), (4, 8), (5, 3, 4), (6, 6)]


def main():
    torch.manual_seed(331)
    net = Packed()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    gen = torch.Generator().manual_seed(332)
    for step, packing in enumerate(map(Packing, DOCS)):
        ids = torch.randint(0, 36, (len(packing) + 1,), generator=gen)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(ids[:-1], packing), ids[1:])
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
