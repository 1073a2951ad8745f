import torch
import torch.nn as nn


class Observer(nn.Module):
    def __init__(self, freeze_after):
        super().__init__()
        self.freeze_after = freeze_after
        self.batches = 0
        self.register_buffer("lo", torch.zeros(()))
        self.register_buffer("hi", torch.zeros(()))

    def forward(self, x):
        if self.batches <= self.freeze_after:
            x = x.detach()
            self.lo.copy_(torch.minimum(self.lo, x.min()))
            self.hi.copy_(torch.maximum(self.hi, x.max()))
        self.batches += 1
        return self.lo, self.hi


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
        self.observer = Observer(freeze_after)

    def forward(self, x):
        lo, hi = self.observer(x)
        return Round.apply(x, lo, hi, self.levels)
