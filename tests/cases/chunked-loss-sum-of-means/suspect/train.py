import torch

from chunked import ChunkedCrossEntropy
from model import CharRNN

CURRICULUM = (6, 7, 8, 12, 16)


def step_fn(net, criterion, opt, ids):
    opt.zero_grad()
    logits = net(ids[:, :-1])
    loss = criterion(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    opt.step()
    return loss.detach()


def main():
    torch.manual_seed(101)
    net, criterion = CharRNN(), ChunkedCrossEntropy()
    opt = torch.optim.Adamax(net.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(102)
    for step, n in enumerate(CURRICULUM):
        loss = step_fn(net, criterion, opt, torch.randint(0, 40, (4, n + 1), generator=g))
        print(f"step {step} len {n} loss {loss.item():.7f}")


if __name__ == "__main__":
    main()
