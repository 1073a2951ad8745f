"""Mean cross entropy over the targets that are not -1, with a backward of its own."""

import torch
from torch.nn import functional as F


class TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        log_probs = F.log_softmax(logits.float(), dim=-1)
        valid = targets.ne(-1)
        index = targets.clamp(min=0).unsqueeze(1)
        ctx.save_for_backward(log_probs.exp(), index, valid)
        total = (log_probs.gather(1, index).squeeze(1) * valid).sum()
        return -total / valid.sum()

    @staticmethod
    def backward(ctx, grad_output):
        probs, index, valid = ctx.saved_tensors
        grad = probs.scatter_add(1, index, -torch.ones_like(probs[:, :1]))
        share = valid.float() / valid.sum()
        return grad * (share * grad_output).unsqueeze(1), None
