import torch


def flat_grads(params):
    return [p.grad.clone() for p in params]


def project(first, second):
    """Takes out of `first` what points against `second`."""
    dot = sum((a * b).sum() for a, b in zip(first, second))
    if dot >= 0:
        return first
    norm = sum((b * b).sum() for b in second)
    return [a - dot / norm * b for a, b in zip(first, second)]
