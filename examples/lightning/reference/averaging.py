"""A callback that keeps an average of the weights, from some step on, and validates with it at the end."""

import lightning
import torch


class WeightAverage(lightning.Callback):
    def __init__(self, decay, start):
        self.decay, self.start, self.average, self.seen = decay, start, None, 0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        if trainer.global_step == self.seen:
            return  # a micro-batch without an update
        self.seen = trainer.global_step
        if self.seen < self.start:
            return
        weights = [p.detach() for p in module.parameters()]
        if self.average is None:
            self.average = [w.clone() for w in weights]
        for average, w in zip(self.average, weights, strict=True):
            average.mul_(self.decay).add_(w, alpha=1 - self.decay)

    @torch.no_grad()
    def on_train_end(self, trainer, module):
        for p, average in zip(module.parameters(), self.average, strict=True):
            p.copy_(average)
