import torch

from gpt import Gpt
from optimizers import SpectralMomentum


def microbatches(seed, count):
    g = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 40, (3, 15), generator=g) for _ in range(count)]
    return [(r[:, :-1], r[:, 1:]) for r in rows]


def main(steps=4, accumulate=2):
    torch.manual_seed(91)
    net = Gpt()
    matrices = [p for p in net.layers.parameters() if p.ndim == 2]
    vectors = [p for p in net.layers.parameters() if p.ndim == 1]
    opts = [torch.optim.Adam([net.head.weight, net.tok.weight] + vectors, lr=3e-3, foreach=True), SpectralMomentum(matrices, lr=0.02)]
    warmup = [torch.optim.lr_scheduler.LambdaLR(o, lambda s: min(1.0, (s + 1) / 3)) for o in opts]
    for number, (ids, labels) in enumerate(microbatches(92, steps * accumulate)):
        loss = net(ids, labels)
        loss.div(accumulate).backward()
        print(f"step {number // accumulate}.{number % accumulate} loss {loss.item():.7f}")
        if (number + 1) % accumulate == 0:
            for o, w in zip(opts, warmup):
                o.step()
                w.step()
                o.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
