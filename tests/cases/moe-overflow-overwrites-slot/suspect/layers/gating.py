import torch
import torch.nn.functional as F


def top1_gating(logits, capacity, use_rts=False, generator=None):
    """Expert, slot and weight of each token; tokens beyond the capacity are dropped."""
    weight, expert = logits.softmax(-1).max(-1)
    hot = F.one_hot(expert, logits.size(-1))
    if use_rts:
        order = torch.rand(expert.shape, generator=generator)
        keep = torch.topk(order.unsqueeze(1) * hot, min(capacity, expert.numel()), dim=0).indices
        hot = hot * torch.zeros_like(hot).scatter_(0, keep, 1)
    location = (hot.cumsum(0) * hot).sum(-1) - 1
    location = location.clamp(max=capacity - 1)
    return expert, location, weight
