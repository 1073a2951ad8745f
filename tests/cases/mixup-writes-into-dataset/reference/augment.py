import torch


def mixup(x, y, lam, gen):
    """x: [B, ...] float32; y: [B, C] one-hot."""
    other = torch.randperm(x.size(0), generator=gen)
    return lam * x + (1 - lam) * x[other], lam * y + (1 - lam) * y[other]
