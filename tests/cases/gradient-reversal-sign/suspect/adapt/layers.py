import torch
import torch.nn as nn


class GradientScaling(torch.autograd.Function):
    """Identity whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor, None


class GradientReversal(nn.Module):
    def forward(self, x, strength):
        return GradientScaling.apply(x, strength)
