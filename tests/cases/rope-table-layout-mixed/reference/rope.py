import torch


def angles(length, dim, base=10000.0):
    inv = base ** (-torch.arange(0, dim, 2).float() / dim)
    freqs = torch.outer(torch.arange(length).float(), inv)
    return torch.stack((freqs, freqs), dim=-1).flatten(-2)


def rotate(x):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((-odd, even), dim=-1).flatten(-2)


def apply(x, theta):
    return x * theta.cos() + rotate(x) * theta.sin()
