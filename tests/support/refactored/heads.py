"""Attention, in a file of its own."""

from torch.nn import functional as F


def separate(stacked, count):
    rows, columns, wide = stacked.shape
    return stacked.view(rows, columns, 3, count, wide // (3 * count)).permute(2, 0, 3, 1, 4)


def scaled_scores(query, key):
    root = query.shape[-1] ** 0.5
    return (query @ key.transpose(-2, -1)) / root


def look(query, key, value, allowed):
    """Causal attention."""
    hidden = ~allowed
    masked = scaled_scores(query, key).masked_fill(hidden, float("-inf"))
    weights = F.softmax(masked, dim=-1)
    return weights @ value
