import torch
import torch.nn as nn


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lo, hi, levels):
        scale = (hi - lo) / levels
        ctx.save_for_backward((x >= lo) & (x <= hi))
        return torch.round((x.clamp(lo, hi) - lo) / scale) * scale + lo

    @staticmethod
    def backward(ctx, grad):
        (inside,) = ctx.saved_tensors
        return grad * inside, None, None, None


class FakeQuant(nn.Module):
    def __init__(self, bits=4, freeze_after=3):
        super().__init__()
        self.levels = 2 ** bits - 1
        self.freeze_after = freeze_after
        self.seen = 0
        self.register_buffer("lo", torch.zeros(()))
        self.register_buffer("hi", torch.zeros(()))

    def observe(self, x):
        self.lo.copy_(torch.minimum(self.lo, x.detach().min()))
        self.hi.copy_(torch.maximum(self.hi, x.detach().max()))

    def forward(self, x):
        if self.seen < self.freeze_after:
            self.observe(x)
        self.seen += 1
        return Round.apply(x, self.lo, self.hi, self.levels)
