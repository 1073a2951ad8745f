import torch

from model import LM
from packing import pack


def main():
    torch.manual_seed(180)
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, foreach=False)
    gen = torch.Generator().manual_seed(181)
    for step, lengths in enumerate([(5, 7), (4, 4, 4), (12,), (3, 9)]):
        loss = model(pack(torch.randint(0, 26, (13,), generator=gen), lengths))
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item().hex())


if __name__ == "__main__":
    main()
