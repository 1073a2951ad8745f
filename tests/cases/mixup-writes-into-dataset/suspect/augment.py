import torch


def mixup(x, y, lam, gen):
    """x: [B, ...] float32; y: [B, C] one-hot."""
    other = torch.randperm(x.size(0), generator=gen)
    x_other, y_other = x[other], y[other]
    x = x.mul_(lam).add_((1 - lam) * x_other)
    y = lam * y + (1 - lam) * y_other
    return x, y
