import torch
import torch.nn.functional as F

from model import CharRNN


def lengths():
    return [6, 7, 8, 12, 16]  # curriculum


def main():
    torch.manual_seed(101)
    net = CharRNN()
    opt = torch.optim.Adamax(net.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(102)
    for step, n in enumerate(lengths()):
        ids = torch.randint(0, 40, (4, n + 1), generator=g)
        logits = net(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} len {n} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
