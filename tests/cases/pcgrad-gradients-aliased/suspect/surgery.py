import torch


def snapshot(params):
    return [p.grad.detach() for p in params]


def project(first, second):
    """Takes out of `first` what points against `second`."""
    dot = sum((a * b).sum() for a, b in zip(first, second))
    if dot >= 0:
        return first
    norm = sum((b * b).sum() for b in second)
    return [a - dot / norm * b for a, b in zip(first, second)]


def combine(params, first, second):
    for p, a, b in zip(params, project(first, second), project(second, first)):
        p.grad.copy_(a + b)
