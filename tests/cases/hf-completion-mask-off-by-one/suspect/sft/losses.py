import torch
import torch.nn.functional as F


def completion_mask(prompt_lengths, length):
    """Which of `length` label positions belong to the completion."""
    positions = torch.arange(length)
    return positions >= prompt_lengths[:, None]


def completion_loss(logits, input_ids, prompt_lengths):
    labels = input_ids[:, 1:]
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels, reduction="none")
    mask = completion_mask(prompt_lengths, labels.size(1)).float()
    return (nll * mask).sum() / mask.sum()
