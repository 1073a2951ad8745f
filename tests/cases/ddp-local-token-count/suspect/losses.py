import torch.nn.functional as F


def token_loss(logits, tags, ignore=-100):
    """Mean cross entropy over labelled positions."""
    summed = F.cross_entropy(logits.flatten(0, 1), tags.flatten(), ignore_index=ignore, reduction="sum")
    count = (tags != ignore).sum()
    return summed / count
