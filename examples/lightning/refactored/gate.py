"""silu(gate) * up without keeping the activation."""

import torch
from torch.nn import functional as F


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx, grad):
        gate, up = ctx.saved_tensors
        sigma = gate.sigmoid()
        slope = 1 + gate * (1 - sigma)
        to_gate = grad * up * sigma * slope
        to_up = grad * gate * sigma
        return to_gate, to_up


swiglu = SwiGLU.apply
