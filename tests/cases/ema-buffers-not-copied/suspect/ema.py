import copy

import torch


class EMA:
    """Moving average of the weights."""

    def __init__(self, model, decay=0.8):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    def update(self, model):
        source = dict(model.named_parameters())
        with torch.no_grad():
            for name, mean in self.model.named_parameters():
                mean.lerp_(source[name].detach(), 1 - self.decay)
