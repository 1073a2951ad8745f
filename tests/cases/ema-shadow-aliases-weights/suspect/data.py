import torch


def patches(seed, n=5):
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        x = torch.rand(8, 3, 8, 8, generator=g)
        yield x, (x.mean((1, 2, 3)) * 40).long().clamp(0, 39) % 4
