import copy

import torch


class EMA:
    def __init__(self, model, decay=0.8):
        self.model = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for a, p in zip(self.model.parameters(), model.parameters()):
            a.lerp_(p, 1 - self.decay)
        for a, b in zip(self.model.buffers(), model.buffers()):
            a.copy_(b)
