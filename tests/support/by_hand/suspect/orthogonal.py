import torch

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@torch.no_grad()
def newton_schulz(x, steps):
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = x @ x.mT
        poly = b * gram + c * gram @ gram
        x = a * x + poly @ x
    return x


@torch.no_grad()
def orthogonalise(grad, steps=5):
    """Nearest semi-orthogonal matrix, scaled so that tall matrices move as far as wide ones."""
    x = grad.to(torch.bfloat16)
    flipped = grad.size(-2) > grad.size(-1)
    if flipped:
        x = x.mT
    x = newton_schulz(x / (x.norm() + 1e-7), steps)
    x = x * max(1, x.size(-2) / x.size(-1)) ** 0.5
    return x.mT if flipped else x
